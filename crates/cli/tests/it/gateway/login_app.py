"""A service with `POST /login`, of the framework that is the first argument: `flask` or `django`. Prints its port."""

import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server


def flask_app():
    from flask import Flask

    app = Flask(__name__)

    @app.post("/login", strict_slashes=False)
    def login():
        return "login"

    return app


def django_app():
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path
    from django.views.decorators.http import require_POST

    login = require_POST(lambda request: HttpResponse("login"))
    settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="test", MIDDLEWARE=[])
    globals()["urlpatterns"] = [path("login", login)]
    return get_wsgi_application()


class ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_):
        pass


app = {"flask": flask_app, "django": django_app}[sys.argv[1]]()
with make_server("127.0.0.1", 0, app, ThreadingServer, QuietHandler) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
