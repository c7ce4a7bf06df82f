# The REST API of quota as a service of its own, served by gunicorn:
#
#   /opt/cyborg/venv/bin/gunicorn --config /etc/cyborg_quota/cyborg-quota-api-gunicorn.py
wsgi_app = "cyborg_quota.api.wsgi:application"
raw_env = ["OS_CYBORG_QUOTA_CONFIG_FILES=/etc/cyborg_quota/cyborg_quota.conf"]
# Behind the proxy of Cyborg's endpoint.
bind = "127.0.0.1:6667"
worker_class = "gthread"
workers = 2
threads = 4
# The seconds for which an idle connection is kept open: longer than the proxy keeps it, so that the proxy sends no
# request on a connection that is being closed.
keepalive = 75
# The answer to a longer URL is HTML. 8190 is the most that gunicorn takes.
limit_request_line = 8190
# A call waits at most [quota] retry_seconds for the database.
graceful_timeout = 15
