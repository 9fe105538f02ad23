"""The guides to FastAPI, Flask and Django, with real servers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.programs import HTTP, PATH, Program, files_of, running, stored, wait_until, write_files

pytestmark = pytest.mark.frameworks
pytest_plugins = ["pytester"]
SETTINGS = """
import os
FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "db.sqlite3")
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FILE}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
NAMESRV = None
USE_TZ = True
"""
MODELS = """
from django.db import models

class Order(models.Model):
    drink = models.TextField()
    state = models.TextField(default="new")
"""
URLS = """
from django.urls import path
from shop.views import place_order

urlpatterns = [path("orders", place_order)]
"""
MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


@pytest.fixture
def run_tests_of(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, int]]:
    """Run the tests of a guide; return the outcomes."""
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, PATH)))
    pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nasyncio_mode = auto\npythonpath = .\n"
    )

    def run(page: str) -> dict[str, int]:
        for name, text in files_of(page).items():
            Path(name).write_text(text, "utf-8")
        result = pytester.runpytest_subprocess("-p", "pytest_rocketpy", "-p", "no:cacheprovider", timeout=120)
        return result.parseoutcomes()

    return run


def url_of(program: Program) -> str:
    """Where a server of uvicorn or gunicorn listens."""
    return program.wait_for(r"(?:running on|Listening at:) (http://127\.0\.0\.1:\d+)")[1]


def test_the_tests_of_the_fastapi_guide_pass(run_tests_of: Callable[[str], dict[str, int]]) -> None:
    """The first test that a reader copies could fail."""
    assert run_tests_of("fastapi") == {"passed": 2}


def test_fastapi_sends_and_consumes(tmp_path: Path, namesrv: str) -> None:
    """The lifespan or the dependency of the guide would not work in a real server."""
    write_files("fastapi", tmp_path)
    uvicorn = ("-m", "uvicorn", "--port", "0")
    with running(tmp_path, namesrv, *uvicorn, "kitchen:app") as kitchen:
        with running(tmp_path, namesrv, *uvicorn, "app:app") as shop:
            url = url_of(shop)
            assert HTTP.get(f"{url}/ready").json() == {"status": "ready"}
            order = {"number": 7, "drink": "latte"}
            sent = HTTP.post(f"{url}/orders", json=order)
            assert sent.status_code == 202
            assert HTTP.post(f"{url}/orders", json={"number": 7}).status_code == 422
            assert shop.stop() in {0, -15}
        messages = stored(namesrv, "Orders")
        assert sent.json()["message_id"] in {message.message_id for message in messages}
        drinks_url = f"{url_of(kitchen)}/drinks"
        wait_until(lambda: '{"number":7,"drink":"latte"}' in HTTP.get(drinks_url).json())
        assert kitchen.stop() in {0, -15}
    for program in (shop, kitchen):
        assert "Application shutdown complete" in program.output
        assert "Traceback" not in program.output


def test_the_tests_of_the_flask_guide_pass(run_tests_of: Callable[[str], dict[str, int]]) -> None:
    """The first test that a reader copies could fail."""
    assert run_tests_of("flask") == {"passed": 2}


def test_flask_sends_in_workers(tmp_path: Path, namesrv: str) -> None:
    """The command of the guide would start workers that cannot send."""
    write_files("flask", tmp_path)
    gunicorn = ("-m", "gunicorn", "--workers", "2", "--threads", "4", "--bind", "127.0.0.1:0")
    with running(tmp_path, namesrv, *gunicorn, "app:create_app()") as server:
        url = url_of(server)
        responses = [HTTP.post(f"{url}/orders", json={"number": number}) for number in range(8)]
        assert {response.status_code for response in responses} == {202}
        assert HTTP.get(f"{url}/ready").json() == {"problems": []}
        assert server.stop() == 0
    found = {message.message_id for message in stored(namesrv, "Orders")}
    assert {response.json()["message_id"] for response in responses} <= found
    assert "Traceback" not in server.output
    assert "ResourceWarning" not in server.output


def test_django_sends_after_the_commit_and_consumes(tmp_path: Path, namesrv: str) -> None:
    """The view would send without a commit, or the command not handle messages, or not end."""
    write_files("django", tmp_path)
    for name, text in {
        "settings.py": SETTINGS,
        "urls.py": URLS,
        "manage.py": MANAGE,
        "shop/__init__.py": "",
        "shop/models.py": MODELS,
        "shop/management/__init__.py": "",
        "shop/management/commands/__init__.py": "",
        "wsgi.py": "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'settings'\n"
        "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n",
    }.items():
        (tmp_path / name).write_text(text, "utf-8")
    with running(tmp_path, namesrv, "manage.py", "migrate", "--run-syncdb") as migrate:
        assert migrate.process.wait(60) == 0, migrate.output
    gunicorn = ("-m", "gunicorn", "--preload", "--workers", "2", "--threads", "2", "--bind", "127.0.0.1:0")
    with (
        running(tmp_path, namesrv, "manage.py", "prepare_orders") as kitchen,
        running(tmp_path, namesrv, *gunicorn, "wsgi") as server,
    ):
        url = f"{url_of(server)}/orders"
        responses = [HTTP.post(url, json={"drink": drink}) for drink in ("mocha", "matcha", "chai")]
        assert [response.status_code for response in responses] == [202, 202, 202], server.output
        assert HTTP.post(url, json={"food": "cake"}).status_code == 500
        with sqlite3.connect(tmp_path / "db.sqlite3") as database:

            def states() -> list[str]:
                return [state for (state,) in database.execute("SELECT state FROM shop_order ORDER BY id")]

            wait_until(lambda: states() == ["mocha is ready", "matcha is ready", "chai is ready"])
        database.close()
        assert server.stop() == 0
        assert kitchen.stop() == 0
    assert "Traceback" not in kitchen.output
    assert "waiting for orders" in kitchen.output
