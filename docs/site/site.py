# SPDX-License-Identifier: Apache-2.0
"""The documents as a static site, and the public headers beside them.

usage: site.py SOURCE OUT      pages are in OUT/site afterwards
       site.py --check SITE    follows the links of a site
Ends with 77 where MkDocs or Doxygen is not installed.
"""
import html.parser
import os
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
TITLES = {"howto": "How to", "formats": "Formats", "decisions": "Decisions", "paper": "Figures of the paper"}
FIRST = ["README.md", "tour.md", "cli.md", "semantics.md", "invariants.md", "explain.md", "oracle.md", "architecture.md", "hooks.md", "backends.md", "glossary.md"]


# ---- pages: the documents, and what they link to ----

class Stage:
    def __init__(self, source, folder):
        self.source, self.folder, self.done = source, folder, set()

    def place(self, path):
        """Where a path of the tree lies among the pages."""
        if path == "docs" or path.startswith("docs/"):
            path = path[5:] or "README.md"
            whole = os.path.join(self.source, "docs", path)
        else:
            whole, path = os.path.join(self.source, path), "tree/" + path
        if os.path.isdir(whole):
            return posixpath.join(path, "README.md")
        return path if path.endswith((".md", ".svg", ".json", ".png")) else path + ".md"

    def add(self, path):
        path = posixpath.normpath(path)
        if path in self.done or not os.path.exists(os.path.join(self.source, path)):
            return
        self.done.add(path)
        whole, to = os.path.join(self.source, path), os.path.join(self.folder, self.place(path))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        if os.path.isdir(whole):
            self.add_folder(path, whole, to)
        elif path.endswith(".md"):
            with open(whole, encoding="utf-8") as file:
                text = self.rewrite(path, file.read())
            with open(to, "w", encoding="utf-8") as file:
                file.write(text)
        elif path.endswith((".svg", ".json", ".png")):
            shutil.copy(whole, to)
        else:
            with open(whole, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
            with open(to, "w", encoding="utf-8") as file:
                file.write(f"# {path}\n\n" + "\n".join("    " + line for line in lines) + "\n")

    def add_folder(self, path, whole, to):
        readme = posixpath.join(path, "README.md")
        if os.path.exists(os.path.join(self.source, readme)):
            self.add(readme)
            return
        with open(to, "w", encoding="utf-8") as file:
            file.write(f"# {path}\n\n" + "".join(f"* `{name}`\n" for name in sorted(os.listdir(whole))))

    def rewrite(self, path, text):
        def replace(match):
            target = match.group(2)
            if re.match(r"[a-z]+:|#", target):
                return match.group(0)
            name, _, anchor = target.partition("#")
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
            self.add(linked)
            there = posixpath.relpath(self.place(linked), posixpath.dirname(self.place(path)) or ".")
            return f"{match.group(1)}{there}{'#' + anchor if anchor else ''}{match.group(3)}"

        parts = re.split(r"(^```.*?^```|^    .*?$)", text, flags=re.S | re.M)
        # MkDocs wants an empty line in front of a list; the documents are read by other programs too.
        return "".join(part if i % 2 else re.sub(r"(?m)^([^\s*|#>-][^\n]*)\n(?=\* )", r"\1\n\n", LINK.sub(replace, part)) for i, part in enumerate(parts))


def title_of(path):
    with open(path, encoding="utf-8") as file:
        match = re.search(r"^# (.+)$", file.read(), re.M)
    return match.group(1).replace("`", "").replace('"', "'") if match else os.path.basename(path)


def write_configuration(out, folder):
    top = sorted(n for n in os.listdir(folder) if n.endswith(".md"))
    lines = ["site_name: cddp", f"docs_dir: {folder}", f"site_dir: {out}/site", "use_directory_urls: false", "theme:", "  name: mkdocs", "  highlightjs: false",
             "plugins: [search]", "markdown_extensions: [tables, fenced_code, toc]", "nav:"]
    for name in [n for n in FIRST if n in top] + [n for n in top if n not in FIRST]:
        lines.append(f'  - "{title_of(os.path.join(folder, name))}": {name}')
    for sub, title in ((s, t) for s, t in TITLES.items() if os.path.isdir(os.path.join(folder, s))):
        lines.append(f'  - "{title}":')
        for name in sorted(os.listdir(os.path.join(folder, sub))):
            if name.endswith(".md"):
                lines.append(f'    - "{title_of(os.path.join(folder, sub, name))}": {sub}/{name}')
    lines.append('  - "The C interface": api/index.html')
    with open(os.path.join(out, "mkdocs.yml"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


# ---- links ----

class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.names, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.names.update(found[key] for key in ("id", "name") if found.get(key))
        for key in ("href", "src"):
            if found.get(key):
                self.links.append(found[key])


def broken_links(site):
    pages = {}
    for folder, _, names in os.walk(site):
        for name in names:
            if name.endswith(".html"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    pages[path] = Page(file.read())
    for path, page in sorted(pages.items()):
        # Doxygen's pages are its own; they only have to be there.
        if os.path.relpath(path, site).startswith("api" + os.sep) or os.path.basename(path) == "404.html":
            continue
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            name, _, anchor = urllib.parse.unquote(link).partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if os.path.isdir(there):
                there = os.path.join(there, "index.html")
            if not os.path.exists(there):
                yield f"{os.path.relpath(path, site)}: {link}: there is no such file"
            elif anchor and there in pages and anchor not in pages[there].names:
                yield f"{os.path.relpath(path, site)}: {link}: there is no such place"


def check(site):
    broken = list(broken_links(site))
    print("\n".join(broken[:40]))
    print(f"{len(broken)} broken links")
    return 1 if broken else 0


# ---- all of it ----

def run(command, folder, text=None):
    done = subprocess.run(command, cwd=folder, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed")


def main(source, out):
    for tool in ("mkdocs", "doxygen"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed (Debian: apt-get install {tool})")
            return 77
    source, out = os.path.abspath(source), os.path.abspath(out)
    shutil.rmtree(out, ignore_errors=True)
    stage = Stage(source, os.path.join(out, "pages"))
    os.makedirs(stage.folder)
    for folder, _, names in os.walk(os.path.join(source, "docs")):
        for name in sorted(names):
            if name.endswith((".md", ".svg", ".json")):
                stage.add(os.path.relpath(os.path.join(folder, name), source))
    # MkDocs takes what Doxygen wrote along.
    os.makedirs(os.path.join(stage.folder, "api"))
    with open(os.path.join(source, "docs", "site", "Doxyfile"), encoding="utf-8") as file:
        configuration = file.read()
    run(["doxygen", "-"], source, f"{configuration}\nOUTPUT_DIRECTORY = {stage.folder}/api\n")
    write_configuration(out, stage.folder)
    run(["mkdocs", "build", "--quiet", "--strict", "-f", os.path.join(out, "mkdocs.yml")], source)
    return check(os.path.join(out, "site"))


if __name__ == "__main__":
    sys.exit(check(sys.argv[2]) if sys.argv[1] == "--check" else main(sys.argv[1], sys.argv[2]))
