# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser: drawn, clicked, typed into, without an error, without a request.

usage: page_test.py CDDP-VERIFY SOURCE-FOLDER TRAIN-DDP [MODULE]
Ends with 77 where no Chromium is installed.
"""
import os
import subprocess
import sys
import tempfile

import webdriver

VERIFY, SOURCE, JOB = sys.argv[1:4]
MODULE = sys.argv[4:5]
KEYS = {"right": "\ue014", "left": "\ue012", "down": "\ue015"}
failures = 0


def check(what, is_right):
    global failures
    if not is_right:
        failures += 1
        print(f"FAILED  {what}")


def page(folder, scenario, *options):
    """Records a run and returns the path of its page."""
    name = scenario.replace("/", "_") + "".join(options).replace(" ", "").replace("/", "_")
    store, html = os.path.join(folder, name + ".db"), os.path.join(folder, name + ".html")
    subprocess.run([VERIFY, "run", f"{SOURCE}/scenarios/{scenario}.toml", "--trace", store, *options], stdout=subprocess.DEVNULL, check=False)
    subprocess.run([VERIFY, "report", store, "--format", "html", "-o", html], check=False)
    return html


def painted(browser):
    """How many different colours the canvas shows: 1 is an empty one."""
    return browser.run("""const c = document.getElementById('timeline'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
        for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
        return seen.size;""")


def is_clean(browser, name):
    log = [line["message"] for line in browser.log() if line["level"] in ("SEVERE", "WARNING")
           and "willReadFrequently" not in line["message"]]  # this test reads the canvas, the page does not
    check(f"{name}: nothing in the console: {log}", not log)
    requests = browser.run("return performance.getEntriesByType('resource').map(r => r.name)")
    check(f"{name}: no request: {requests}", not [r for r in requests if not r.startswith("data:")])


def look_at_cards(browser, folder):
    """What a search and a battery say, with the run that shows it."""
    failing = os.path.join(folder, "failing.toml")
    with open(f"{SOURCE}/scenarios/bugs/options_differ.toml", encoding="utf-8") as file:
        text = file.read()
    with open(failing, "w", encoding="utf-8") as file:
        file.write(text[:text.index("[expect]")])
    for name, words, lines, has_run in (("explore", ["explore", failing], 1, True), ("hook", ["hook-conformance", "fp16_compress"], 24, False)):
        html = os.path.join(folder, name + ".html")
        subprocess.run([VERIFY, *words, "--format", "html", "-o", html], stderr=subprocess.DEVNULL, check=False)
        browser.open(html)
        check(f"{name}: a row for everything asked", browser.run("return document.querySelectorAll('#card tbody tr').length") == lines)
        check(f"{name}: the run that shows it", browser.run("return document.querySelector('#timeline') !== null") == has_run)
        check(f"{name}: one heading of the first level", browser.run("return document.querySelectorAll('h1').length") == 1)
        if has_run:
            check(f"{name}: the culprit comes first", "I-CONTENT" in browser.run("return document.getElementById('culprit').textContent"))
            check(f"{name}: the timeline is painted", painted(browser) > 5)
        is_clean(browser, name)


def look_at_a_hang(browser, folder):
    browser.open(page(folder, "bugs/hung_job"))
    text = browser.run("return document.getElementById('culprit').textContent")
    check(f"the culprit comes first: {text}", text.startswith("hang: ranks 0, 1 and 3 wait in allreduce #7") and "for rank 2" in text)
    sections = browser.run("return [...document.querySelectorAll('main section')].map(s => s.id)")
    check(f"every section: {sections}", sections == ["verdict", "findings", "time", "hang", "order", "buckets", "overlap", "values", "schedule"])
    check("the timeline is painted", painted(browser) > 8)
    check("every finding has a card", browser.run("return document.querySelectorAll('.finding').length") == 5)
    check("rules are explained", browser.run("return [...document.querySelectorAll('.finding details pre')].some(p => p.textContent.includes('usual causes'))"))
    check("who waits for whom", browser.run("return [...document.querySelectorAll('svg circle.culprit')].length") == 1)
    check("the first difference", browser.run("return document.querySelector('#divergence-0').textContent").startswith("#7"))
    check("the missing call", browser.run("return document.querySelector('#divergence-0 .missing').textContent") == "nothing")
    check("a wrong value", browser.run("return document.querySelectorAll('.strip .x2').length") > 0)
    browser.run("document.querySelector('.strip .x2 button').click()")
    browser.type(".strip .x2 button", KEYS["down"])
    check("arrow keys walk from value to value", browser.run("return document.activeElement.closest('.strip') !== null && document.querySelectorAll('.strip [tabindex=\"0\"]').length") == 1)
    check("its numbers", "expected" in browser.run("return document.getElementById('value').textContent"))
    browser.run("scrollTo(0, 0)")
    browser.click(".finding button")
    check("a finding leads to the timeline", "rank 2" in browser.run("return document.getElementById('selected').textContent"))
    before = browser.run("return document.getElementById('timeline').dataset.selected")
    browser.type("#timeline", KEYS["right"])
    check("arrow keys walk", browser.run("return document.getElementById('timeline').dataset.selected") != before)
    browser.type("#timeline", KEYS["down"])
    check("down goes to the next rank", "rank 3" in browser.run("return document.getElementById('selected').textContent"))
    browser.type("#search", "expert")
    check("a parameter leads to its bucket", browser.run("return document.querySelector('#search + span').textContent") != "nothing found")
    browser.click("#scale")
    check("the other scale", painted(browser) > 3)
    browser.type("#schedule input[type=range]", KEYS["right"])
    check("the schedule walks", "choice 2" in browser.run("return document.getElementById('choice').textContent"))
    check("the report as text", "I-LIVE" in browser.run("return document.querySelector('#text pre').textContent"))
    is_clean(browser, "hang")


def look_at_others(browser, folder):
    browser.open(page(folder, "gan_unused_params"))
    check("a verified run", browser.run("return document.querySelector('.verdict').textContent") == "verified")
    check("used maps", browser.run("return document.querySelectorAll('#used .x1').length") == 20)
    is_clean(browser, "gan")
    html = page(folder, "gan_unused_params", "--set", "train.steps=50", "-n", "64")
    check(f"64 ranks and 50 steps: {os.path.getsize(html)} bytes", os.path.getsize(html) < 8_000_000)
    browser.open(html)
    check("64 ranks are drawn", painted(browser) > 5)
    check("folded", browser.run("return document.getElementById('timeline').height / devicePixelRatio") < 64 * 20 + 100)
    is_clean(browser, "64 ranks")


def look_at_a_large_hang(browser, folder):
    """64 ranks that hang in step 46 of 50: the page begins there, and those that did the same share a row or a column."""
    scenario, store, html = (os.path.join(folder, "large" + end) for end in (".toml", ".db", ".html"))
    with open(f"{SOURCE}/scenarios/bugs/hung_job.toml", encoding="utf-8") as file:
        text = file.read()
    text = text[:text.index("[expect]")]
    for old, new in (("size = 4", "size = 64"), ("steps = 4", "steps = 50"), ("steps = 2\n", "steps = 46\n"), ("ranks = 2", "ranks = 40")):
        check(f"the scenario has one '{old}'", text.count(old) == 1)
        text = text.replace(old, new)
    with open(scenario, "w", encoding="utf-8") as file:
        file.write(text)
    subprocess.run([VERIFY, "run", scenario, "--trace", store], stdout=subprocess.DEVNULL, check=False)
    subprocess.run([VERIFY, "report", store, "--format", "html", "-o", html], check=False)
    check(f"a large hang: {os.path.getsize(html)} bytes", os.path.getsize(html) < 8_000_000)
    browser.open(html)
    check("it begins at the finding", "surrounds the first finding" in browser.run("return document.getElementById('selected').textContent"))
    check("who waits share a row", browser.run("return [...document.querySelectorAll('#hang tbody tr')].map(r => r.cells[0].textContent)") == ["ranks 0-39, 41-63"])
    check("who posted the same share a column", browser.run("return [...document.querySelectorAll('#order th')].map(h => h.textContent)") == ["#", "ranks 0-39, 41-63", "rank 40"])
    check("the missing call", browser.run("return document.querySelector('#divergence-0 .missing').textContent") == "nothing")
    check("wrong values stand first", browser.run("return [...document.querySelectorAll('.strip th')].slice(1, 2).map(h => h.textContent)") == ["s46 r40"])
    check("and are red", browser.run("return document.querySelector('.strip tbody td').className") == "x2")
    check("no name of a tensor is broken", browser.run("return [...document.querySelectorAll('.strip tbody th')].every(h => h.getBoundingClientRect().width > 130)"))
    browser.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"media": "print"}})
    browser.do("POST", "/window/rect", {"width": 815, "height": 1100})
    wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(f"it fits on paper: {wide} pixels stand out", wide <= 0)
    browser.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"media": ""}})
    browser.do("POST", "/window/rect", {"width": 1300, "height": 1000})
    browser.click("#jump")
    check("the culprit is not folded", "rank 40" in browser.run("return document.getElementById('selected').textContent"))
    is_clean(browser, "a large hang")


def look_at_a_recorded_job(browser, folder):
    """From shards, without a store; the same for Perfetto and as a figure."""
    recording, html = os.path.join(folder, "job.db"), os.path.join(folder, "job.html")
    subprocess.run([JOB, "2" if MODULE else "1", *MODULE], stdout=subprocess.DEVNULL, check=True, env={**os.environ, "CDDP_RECORD": recording})
    shards = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("job.db."))
    check(f"shards: {shards}", len(shards) == (2 if MODULE else 1))
    subprocess.run([VERIFY, "check", *shards, "--format", "html", "-o", html], check=False)
    browser.open(html)
    check("a recorded job is verified", browser.run("return document.querySelector('.verdict').textContent") == "verified")
    check("it has a timeline", browser.run("return document.querySelector('#timeline') !== null") and painted(browser) > 5)
    browser.type("#timeline", KEYS["right"])
    check("which can be walked", "rank 0" in browser.run("return document.getElementById('selected').textContent"))
    is_clean(browser, "a recorded job")
    for form, words in (("perfetto", '"time":"of the machine"'), ("svg", "<svg")):
        drawn = subprocess.run([VERIFY, "report", *shards, "--format", form], stdout=subprocess.PIPE, text=True, check=False).stdout
        check(f"a recorded job as {form}", words in drawn and "allreduce #" in drawn)


def look_in_every_shape(browser, folder):
    """A narrow window, a dark one, and paper."""
    html = page(folder, "bugs/hung_job")
    browser.do("POST", "/window/rect", {"width": 480, "height": 900})
    browser.open(html)
    wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(f"a narrow window: {wide} pixels stand out", wide <= 0)
    contrast = """const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const probe = document.createElement('i'); document.body.append(probe);
        const worst = Math.min(...[0, 1, 2, 3, 4].map(i => { probe.style.color = `var(--t${i})`; probe.style.backgroundColor = `var(--c${i})`;
          const s = getComputedStyle(probe), [a, b] = [light(s.color), light(s.backgroundColor)].sort((x, y) => x - y); return (b + 0.05) / (a + 0.05); }));
        probe.remove(); return worst;"""
    for scheme in ("light", "dark"):
        browser.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [{"name": "prefers-color-scheme", "value": scheme}]}})
        check(f"labels of slices in {scheme}: {browser.run(contrast)}", browser.run(contrast) >= 4.5)
    browser.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}})
    check("paper is white", browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)")
    check("values are printed", browser.run("return [...document.querySelectorAll('.strip td button')].every(b => b.getBoundingClientRect().width > 0)"))
    check("handles are not printed", browser.run("return [...document.querySelectorAll('.tools, nav, .hint')].every(e => e.getBoundingClientRect().width === 0)"))
    browser.run("dispatchEvent(new Event('beforeprint'))")
    check("rules are printed", browser.run("return [...document.querySelectorAll('.finding details')].every(d => d.open)"))
    browser.run("dispatchEvent(new Event('afterprint'))")
    check("and closed again", browser.run("return [...document.querySelectorAll('.finding details')].every(d => !d.open)"))
    browser.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"media": "", "features": []}})
    browser.do("POST", "/window/rect", {"width": 1300, "height": 1000})


def look_at_a_sweep(browser, folder):
    html = os.path.join(folder, "sweep.html")
    subprocess.run([VERIFY, "sweep", f"{SOURCE}/scenarios/models/mlp_two_ranks.toml", "--vary", "train.steps=2,3", "--format", "html", "-o", html], stderr=subprocess.DEVNULL, check=False)
    browser.open(html)
    check("a row per cell of a sweep", browser.run("return document.querySelectorAll('#card tbody tr').length") == 2)
    check("a column per setting and cost", browser.run("return [...document.querySelectorAll('#card th')].map(e => e.textContent)") == ["", "train.steps", "step", "exposed", "bytes", "memory", "found"])
    is_clean(browser, "sweep")


def look_at_several(browser, folder):
    store, html = os.path.join(folder, "several.db"), os.path.join(folder, "several.html")
    subprocess.run([VERIFY, "run", f"{SOURCE}/scenarios/order", "--trace", store, "--format", "html", "-o", html, "--keep-going"], check=False)
    browser.open(html)
    many = browser.run("return document.querySelectorAll('#pick option').length")
    check(f"a result each: {many}", many > 5)
    browser.run("const p = document.getElementById('pick'); p.value = p.options.length - 1; p.dispatchEvent(new Event('change'))")
    check("another result is drawn", painted(browser) > 5)
    is_clean(browser, "several")


def main():
    if not webdriver.is_there():
        print("no chromium and chromedriver here: pages were not opened")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        size = os.path.getsize(page(folder, "gan_unused_params"))
        check(f"the flagship's page is below 2 MB: {size} bytes", size < 2_000_000)
        browser = webdriver.Browser()
        try:
            look_at_a_hang(browser, folder)
            look_at_cards(browser, folder)
            look_at_others(browser, folder)
            look_at_a_large_hang(browser, folder)
            look_at_a_recorded_job(browser, folder)
            look_at_several(browser, folder)
            look_at_a_sweep(browser, folder)
            look_in_every_shape(browser, folder)
        finally:
            browser.close()
    print(f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
