# Cyborg's API with quota, served by gunicorn:
#
#   /opt/cyborg/venv/bin/gunicorn --config /etc/cyborg/cyborg-api-gunicorn.py
import sys

wsgi_app = "cyborg_quota.cyborg.wsgi:application"
# Behind a proxy that terminates TLS.
bind = "127.0.0.1:6666"
worker_class = "gthread"
workers = 4
threads = 4
# The seconds for which an idle connection is kept open: longer than the proxy keeps it, so that the proxy sends no
# request on a connection that is being closed.
keepalive = 75
# The seconds that a worker may take to answer its last requests after it was told to stop. A bind may take as long as
# an RPC call: [DEFAULT] rpc_response_timeout in cyborg.conf.
graceful_timeout = 65
# A delete that names many ARQs has a long URL. 8190 is the most that gunicorn takes.
limit_request_line = 8190


def post_fork(_server, _worker):
    # Cyborg parses the command line when the worker loads it, and does not accept gunicorn's options.
    sys.argv[1:] = ["--config-file", "/etc/cyborg/cyborg.conf"]
