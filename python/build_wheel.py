# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of cddp_torch with nothing but Python: no download, no other package (PEP 517).

Where libcddp_trace.so is found (CDDP_TRACE_LIBRARY, or a build folder of this checkout), it goes into the
wheel, which is then for this machine's system. Without it the wheel is pure Python, and writes no digests.
"""
import base64
import glob
import hashlib
import os
import sysconfig
import zipfile

NAME, VERSION = "cddp_torch", "0.1.0"
HERE = os.path.dirname(os.path.abspath(__file__))
INFO = "%s-%s.dist-info" % (NAME, VERSION)
# Read by the interpreter at its start: CDDP_TORCH=dir records a program that changes nothing.
STARTUP = "import os; os.environ.get('CDDP_TORCH') and __import__('cddp_torch.startup')\n"


def _library():
    named = os.environ.get("CDDP_TRACE_LIBRARY")
    if named is not None:
        return named if named and os.path.exists(named) else None
    found = sorted(glob.glob(os.path.join(HERE, "..", "build", "*", "lib", "libcddp_trace.so")))
    return found[0] if found else None


def _metadata():
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    return ("Metadata-Version: 2.1\nName: cddp-torch\nVersion: %s\nSummary: Records PyTorch DDP jobs, so that "
            "cddp-verify can judge them\nLicense: Apache-2.0\nRequires-Python: >=3.8\nRequires-Dist: torch>=1.13.0a0\n"
            "Description-Content-Type: text/markdown\n\n%s" % (VERSION, readme)).encode()


def _tag(library):
    if library is None:
        return "py3-none-any"
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _files(library):
    """Names in the wheel, with their contents; in a fixed order, so that wheels are reproducible."""
    for path in sorted(glob.glob(os.path.join(HERE, NAME, "*.py"))):
        with open(path, "rb") as file:
            yield "%s/%s" % (NAME, os.path.basename(path)), file.read()
    events = os.path.join(HERE, "..", "include", "cddp", "events.def")
    if not os.path.exists(events):
        raise FileNotFoundError("%s is not there: build the wheel in a checkout" % os.path.abspath(events))
    for path, name in ((os.path.join(HERE, NAME, "py.typed"), "py.typed"), (events, "events.def"),
                       (library, "libcddp_trace.so")):
        if path is not None and os.path.exists(path):
            with open(path, "rb") as file:
                yield "%s/%s" % (NAME, name), file.read()
    yield "cddp_torch.pth", STARTUP.encode()
    yield INFO + "/METADATA", _metadata()
    yield INFO + "/WHEEL", ("Wheel-Version: 1.0\nGenerator: cddp\nRoot-Is-Purelib: true\nTag: %s\n"
                            % _tag(library)).encode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    library = _library()
    name = "%s-%s-%s.whl" % (NAME, VERSION, _tag(library))
    record = ""
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in _files(library):
            info = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            wheel.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += "%s,sha256=%s,%d\n" % (path, digest, len(data))
        wheel.writestr(zipfile.ZipInfo(INFO + "/RECORD", (2020, 1, 1, 0, 0, 0)), record + INFO + "/RECORD,,\n")
    return name


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("build the wheel from a checkout: its events.def is in include/cddp")
