"""The page in a real browser, headless Chromium, over one cluster with API keys: chat, stop, live view, waterfall."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb
from playwright.async_api import Browser, BrowserContext, Page, Route, async_playwright, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
PATIENCE_MS = 20_000
ADMIN, TENANT = "key-of-ops", "key-of-acme"
SETTINGS = {"tenants.keys": {ADMIN: "ops", TENANT: "acme"}, "tenants.admins": ["ops"], "engine.kv_num_blocks": 400}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        not CHROMIUM and os.environ.get("CI") != "true", reason="no chromium here: apt-get install chromium"
    ),
]


@dataclass
class Look:
    """A browser page that remembers what went wrong in it and whom it spoke to."""

    page: Page
    errors: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def check_quiet(self, *allowed: str) -> None:
        """No error on the console but those that a test provoked."""
        assert [error for error in self.errors if not any(word in error for word in allowed)] == []


@dataclass
class Site:
    """The cluster, the browser, and the folder for screenshots."""

    cluster: Cluster
    browser: Browser
    shots: Path
    contexts: list[BrowserContext] = field(default_factory=list)

    async def open(self, key: str = "", **options: Any) -> Look:
        """A fresh browser profile at `/`, with the key of an earlier visit when one is given."""
        context = await self.browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        self.contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        look = Look(await context.new_page())
        look.page.on("pageerror", lambda error: look.errors.append(str(error)))
        look.page.on("console", lambda said: look.errors.append(said.text) if said.type == "error" else None)
        look.page.on("request", lambda request: look.urls.append(request.url))
        if key:
            await context.add_init_script(f"sessionStorage.setItem('octavo.key', '{key}')")
        await look.page.goto(self.cluster.http_url + "/")
        return look

    async def give(self, look: Look, key: str) -> None:
        await look.page.locator("#key").fill(key)
        await look.page.get_by_role("button", name="Use it").click()

    async def generate(self, key: str, request_id: str, tokens: int) -> Any:
        """A long gRPC stream of this tenant, started; cancel the call to end it."""
        channel = self.cluster.channel()
        call = self.cluster.inference(channel).Generate(
            pb.GenerateRequest(
                text="Once upon a time",
                context=pb.RequestContext(request_id=request_id),
                options=pb.Options(max_tokens=tokens, ignore_eos=True),
            ),
            metadata=(("authorization", f"Bearer {key}"),),
        )
        await call.read()
        return call


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    cluster = Cluster(tmp_path_factory.mktemp("page"), settings=SETTINGS)
    try:
        await cluster.up()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            yield Site(cluster, browser, tmp_path_factory.mktemp("screenshots"))
            await browser.close()
    finally:
        cluster.down()


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def tidy(site: Site) -> AsyncIterator[None]:
    yield
    while site.contexts:
        await site.contexts.pop().close()


async def send(page: Page, text: str, tokens: int) -> None:
    await page.locator("#parameters").evaluate("node => { node.open = true; }")
    await page.locator("#p-max_tokens").fill(str(tokens))
    await page.locator("#p-temperature").fill("0")
    await page.locator("#text").fill(text)
    await page.locator("#send").click()


async def test_a_key_is_asked_for_then_chat_answers_and_its_waterfall_opens(site: Site) -> None:
    look = await site.open()
    page = look.page
    await expect(page.locator("#key-form")).to_be_visible()
    await site.give(look, "wrong")
    await expect(page.locator("#key-error")).to_contain_text("not known")
    await site.give(look, ADMIN)
    await expect(page.locator("#state")).to_have_text("ready")
    await send(page, "What is the capital of France?", 24)
    answer = page.locator(".message.assistant")
    await expect(answer.locator(".said")).to_contain_text("Paris")
    await expect(answer.locator(".note")).to_contain_text(re.compile(r"first token .* tokens after \d+ .*device .*KV "))
    await answer.get_by_role("button", name="waterfall").click()
    bars = page.locator("#waterfall .spans")
    for name in ("checks and tokens", "queue", "prefill", "decode"):
        await expect(bars).to_contain_text(name)
    await expect(page.locator("#waterfall .facts")).to_contain_text("finished")
    await expect(page.locator("#recent .request")).to_have_count(1)
    await page.screenshot(path=site.shots / "page-chat.png")
    look.check_quiet("401")
    assert {url.split("/")[2] for url in look.urls} == {site.cluster.http_url.split("/")[2]}


async def test_stop_cancels_and_the_blocks_come_back(site: Site) -> None:
    look = await site.open(ADMIN)
    page = look.page
    before = (await site.cluster.status()).counters["requests_cancelled"]
    await send(page, "Tell me a very long story about the sea.", 2000)
    await expect(page.locator(".message.assistant .said")).not_to_be_empty()
    await expect(page.locator("#running .request")).to_have_count(1)
    await page.locator("#stop").click()
    await expect(page.locator(".message.assistant .note")).to_contain_text("stopped")
    status = await site.cluster.settle()
    assert status.counters["requests_cancelled"] == before + 1
    await expect(page.locator("#running")).to_contain_text("nothing runs")
    await expect(page.locator("#recent .request").first).to_contain_text("cancelled")
    look.check_quiet()


async def test_the_live_view_shows_a_running_request_and_a_click_opens_its_waterfall(site: Site) -> None:
    look = await site.open(ADMIN)
    page = look.page
    calls = [await site.generate(TENANT, name, 1500) for name in ("watched", "story-1", "story-2", "story-3")]
    try:
        row = page.locator("#running .request", has_text="watched")
        await expect(row.locator(".output.phase-decode")).to_be_visible()
        first = await row.locator(".said").inner_text()
        await expect(row.locator(".said")).not_to_have_text(first)  # it moves
        await row.click()
        await expect(page.locator("#waterfall .spans")).to_contain_text("decode")
        await expect(page.locator("#waterfall .spans")).to_contain_text("…")
        await expect(page.locator("#workers")).to_contain_text("4/")
        await expect(page.locator("#stores")).to_contain_text("dram")
        lit = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size"
        assert await page.locator("#workers canvas").evaluate(lit) > 4  # more than one colour and its ground
        await expect(page.locator("#latency")).to_contain_text("between tokens")
        await expect(page.locator("#goodput")).to_contain_text("default")
        await expect(page.locator("#ledger")).to_contain_text("prefix cache")
        await page.locator("#live").screenshot(path=site.shots / "page-live.png")
    finally:
        for call in calls:
            call.cancel()
    await site.cluster.settle()
    look.check_quiet()


async def test_what_a_request_took_is_told_at_its_end(site: Site) -> None:
    """n > 1 in the final message, and a cancelled one in the answer of Cancel, from real steps on a real worker."""
    metadata = (("authorization", f"Bearer {ADMIN}"),)
    async with site.cluster.channel() as channel:
        inference = site.cluster.inference(channel)
        options = pb.Options(n=3, max_tokens=12, ignore_eos=True)
        answer = await read(inference.Generate(pb.GenerateRequest(text="A " * 40, options=options), metadata=metadata))
        cost = answer.finished.cost
        assert cost.prefill_device_us > 0 and cost.decode_device_us > 0 and cost.kv_pool_byte_s > 0
        assert cost.saved_sibling_tokens == 2 * answer.prompt_tokens and cost.recompute_device_us == 0
        call = await site.generate(ADMIN, "to-cancel", 1500)
        await call.read()
        told = await inference.Cancel(pb.CancelRequest(request_id="to-cancel"), metadata=metadata)
        assert told.outcome == "cancelled" and told.cost.prefill_device_us > 0 and told.cost.kv_pool_byte_s > 0
        call.cancel()
    await site.cluster.settle()


async def test_a_tenant_sees_its_own_requests_and_nothing_of_the_cell(site: Site) -> None:
    theirs = await site.generate(ADMIN, "of-ops", 1500)
    own = await site.generate(TENANT, "of-acme", 1500)
    try:
        look = await site.open(TENANT)
        page = look.page
        await expect(page.locator("#running .request")).to_have_count(1)
        await expect(page.locator("#running .request")).to_contain_text("of-acme")
        await expect(page.locator("#workers-card")).to_be_hidden()
        await expect(page.locator("#ledger-card")).to_be_hidden()
        assert "of-ops" not in await page.content()
        refused = await page.evaluate(
            "key => fetch('/live/requests/of-ops?tenant=ops', {headers: {Authorization: `Bearer ${key}`}})"
            ".then(response => response.status)",
            TENANT,
        )
        assert refused == 401
        look.check_quiet("401")
    finally:
        theirs.cancel()
        own.cancel()
    await site.cluster.settle()


async def test_what_a_model_says_never_becomes_markup(site: Site) -> None:
    look = await site.open(ADMIN)
    page = look.page
    evil = "<img src=x onerror='window.hit = 1'><script>window.hit = 2</script>"
    chunk = json.dumps({"choices": [{"delta": {"content": evil}, "finish_reason": "stop"}]})

    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/event-stream", body=f"data: {chunk}\n\ndata: [DONE]\n\n")

    await page.route("**/v1/chat/completions", answer)
    await send(page, evil, 8)
    await expect(page.locator(".message.assistant .said")).to_have_text(evil)
    assert await page.locator("#messages img, #messages script").count() == 0
    assert await page.evaluate("window.hit") is None
    # and were it markup, the policy would still keep it from running
    await page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.hit = 3'}))"
    )
    assert await page.evaluate("window.hit") is None
    look.check_quiet("Content Security Policy")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_readable_on_a_phone_and_in_the_dark(site: Site, scheme: Any) -> None:
    look = await site.open(ADMIN, viewport={"width": 390, "height": 780}, color_scheme=scheme)
    page = look.page
    await expect(page.locator("#chat")).to_be_visible()
    await expect(page.locator("#live")).to_be_hidden()
    await send(page, "Name a river.", 12)
    await expect(page.locator(".message.assistant .note")).to_be_visible()
    await page.locator("#tab-live").click()
    await expect(page.locator("#recent .request").first).to_be_visible()
    await expect(page.locator("#chat")).to_be_hidden()
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    luminance = (
        "() => getComputedStyle(document.body)[%r].match(/\\d+/g).slice(0, 3).map(Number)"
        ".reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0)"
    )
    ground, ink = [await page.evaluate(luminance % name) for name in ("backgroundColor", "color")]
    assert (ground < ink) == (scheme == "dark") and abs(ground - ink) > 120
    await page.screenshot(path=site.shots / f"page-phone-{scheme}.png")
    look.check_quiet()


async def test_a_closed_page_is_no_viewer_any_more(site: Site) -> None:
    look = await site.open(ADMIN)
    await expect(look.page.locator("#state")).to_have_text("ready")
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {ADMIN}"}) as client:
        text = (await client.get(site.cluster.http_url + "/metrics")).text
        assert "octavo_gateway_page_viewers 1.0" in text
        await site.contexts.pop().close()
        async with asyncio.timeout(20):
            while "octavo_gateway_page_viewers 0.0" not in (await client.get(site.cluster.http_url + "/metrics")).text:
                await asyncio.sleep(0.05)
