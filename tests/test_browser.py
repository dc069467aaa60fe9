"""A headless Chromium opens JupyterLab, runs two lessons and moves a slider: the picture must change.

Off by default: ``pytest -m browser --basetemp shots`` leaves the screenshots in ``shots``. Needs playwright and a
Chromium.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
TOKEN = "lessons"
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
MINUTE = 60_000  # in Playwright's milliseconds

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab that serves a copy of the lessons and draws all cells, seen or not."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks", ignore=shutil.ignore_patterns("runs"))
    for name, value in SETTINGS.items():
        settings = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(value))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1",
        f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={home / 'notebooks'}",
        "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=", "--ServerApp.port_retries=0",
    ]  # fmt: skip
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    env.pop("MPLBACKEND", None)
    with (home / "lab.log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(180):
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}")
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, (home / "lab.log").read_text()
                time.sleep(1)
        yield address
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


def picture(page: Any) -> list[int]:
    """The bytes of the widget's PNG, as the page has it."""
    return page.evaluate(
        """async () => {
            const image = document.querySelector('.jp-OutputArea img.widget-image, .jp-OutputArea .widget-image img');
            const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
            return Array.from(bytes);
        }"""
    )


@pytest.mark.parametrize(
    ("lesson", "slider"),
    [("03_soft_gates", "ratio"), ("07_training_on_arithmetic", None)],
    ids=["explorer", "training"],
)
def test_a_slider_changes_the_picture(lesson: str, slider: str | None, lab: str, browser: Any, tmp_path: Path):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(f"{lab}/lab/tree/{lesson}.ipynb?token={TOKEN}&reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=3 * MINUTE)
    page.wait_for_function("window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel", timeout=3 * MINUTE)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    image = page.locator(".jp-OutputArea img.widget-image, .jp-OutputArea .widget-image img").first
    image.wait_for(state="visible", timeout=8 * MINUTE)
    idle = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    page.wait_for_timeout(1000)
    page.wait_for_function(idle, timeout=8 * MINUTE)
    before = picture(page)
    assert bytes(before[:4]) == b"\x89PNG"
    image.scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / "before.png")
    boxes = page.locator(".widget-slider, .widget-hslider")
    box = (boxes.filter(has_text=slider) if slider else boxes).first
    handle = box.locator(".noUi-handle").first
    handle.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        handle.press(key)
    for _ in range(60):
        page.wait_for_timeout(500)
        if picture(page) != before:
            break
    page.screenshot(path=tmp_path / "after.png")
    assert picture(page) != before
    assert page.locator(".jp-OutputArea [data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    page.close()
