# The values of the ledger for Prometheus, served by gunicorn:
#
#   /opt/cyborg/venv/bin/gunicorn --config /etc/cyborg_quota/cyborg-quota-metrics-gunicorn.py
wsgi_app = "cyborg_quota.metrics.wsgi:application"
raw_env = ["OS_CYBORG_QUOTA_CONFIG_FILES=/etc/cyborg_quota/cyborg_quota.conf"]
# An address that only Prometheus can reach: there is no authentication, and the answer names every project.
bind = "127.0.0.1:9876"
worker_class = "gthread"
# One process, so that scrapes at the same time share one read of the ledger.
workers = 1
threads = 2
# A scrape may take longer than gunicorn's 30 s in a large cloud.
timeout = 120
