#!/usr/bin/env python3
"""Third parties in qkv's packages, from their one list (copyright, beside this file).

third_parties.py check             fails if a package that CMake's files or pyproject.toml look for has no entry; CTest runs it
third_parties.py bills FOLDER      writes qkv-VERSION.spdx.json (SPDX 2.3) and qkv-VERSION.cdx.json (CycloneDX 1.5), dated SOURCE_DATE_EPOCH;
                                   versions are the list's, or those of Debian's packages and this Python's
"""

import datetime
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parent.parent
# Looked for and not inside a package: the compiler's, the tests', and what the system's libraries are at run time.
OUTSIDE = {
    "Threads",
    "Python",
    "GTest",
    "rapidcheck",
    "PNG",
    "PkgConfig",
    "ZLIB",
    "Pango",
    "package",
    "scikit-build-core",
    "numpy",
}


def paragraphs():
    """The list's paragraphs as dictionaries; lines that go on are joined."""
    for text in (ROOT / "packaging" / "copyright").read_text(encoding="utf-8").split("\n\n"):
        joined = re.sub(r"\n\s+", "\n ", text.strip())
        yield dict(re.findall(r"^([\w-]+): ?((?:.*)(?:\n .*)*)", joined, re.M))


def parts():
    """A dictionary for each third part."""
    return [part for part in paragraphs() if part.get("Files", "*") != "*"]


def check():
    known = {part["Files"] for part in parts()}
    terms = {part["License"].split("\n")[0] for part in paragraphs() if "\n" in part.get("License", "")}
    wanted = set()
    for folder, pattern in (
        (".", "CMakeLists.txt"),
        ("src", "*.txt"),
        ("cli", "*.txt"),
        ("python", "*.txt"),
        ("cmake", "*.cmake"),
    ):
        for path in (ROOT / folder).glob(pattern):
            wanted |= set(re.findall(r"^ *(?:find_package|qkv_need)\((\w+)", path.read_text(encoding="utf-8"), re.M))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for names in re.findall(r"^(?:requires|dependencies) = \[(.*)\]", project, re.M):
        wanted |= set(re.findall(r'"([\w-]+)', names))
    faults = [f"{name}: looked for, and no entry in packaging/copyright" for name in sorted(wanted - known - OUTSIDE)]
    faults += [f"{part['Files']}: no text of {part['License']}" for part in parts() if part["License"] not in terms]
    faults += [
        f"{part['Files']}: lacks {field}"
        for part in parts()
        for field in ("Source", "Copyright", "SPDX", "In")
        if field not in part
    ]
    faults += [f"{part['Files']}: lacks Package or Version" for part in parts() if not {"Package", "Version"} & part.keys()]
    if len(parts()) < 5:
        faults.append("packaging/copyright could not be read")
    print("\n".join(faults) or f"{len(parts())} third parties, all known")
    return bool(faults)


def version(part):
    """The version of what it was compiled from, and its package URL where the list names a package."""
    kind, _, name = part.get("Package", "").rpartition("/")
    if "Version" in part:
        found = part["Version"]
    elif kind == "deb/debian":
        found = subprocess.run(["dpkg-query", "-W", "-f=${Version}", name], capture_output=True, text=True, check=True).stdout
    else:
        found = importlib.metadata.version(name)
    return found, f"pkg:{kind}/{quote(name, safe='')}@{quote(found, safe=':~')}" if kind else ""


def bills(folder):
    text = (ROOT / "include" / "qkv" / "version.h").read_text(encoding="utf-8")
    own = re.search(r'QKV_VERSION "([0-9.]+)"', text)[1]
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    components, packages, relations = [], [], []
    for part in [{"Files": "qkv", "SPDX": "Apache-2.0", "Copyright": "2026 qkv maintainers"}, *parts()]:
        found, purl = (own, f"pkg:pypi/qkv@{own}") if part["Files"] == "qkv" else version(part)
        rights = " ".join(part["Copyright"].split())
        component = {"type": "library", "name": part["Files"], "version": found, "copyright": rights}
        component["licenses"] = [{"expression": part["SPDX"]}]
        package = {
            "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "x", part["Files"]),
            "name": part["Files"],
            "versionInfo": found,
            "downloadLocation": part.get("Source", "NOASSERTION"),
            "filesAnalyzed": False,
            "licenseConcluded": part["SPDX"],
            "licenseDeclared": part["SPDX"],
            "copyrightText": rights,
        }
        if purl:
            component["purl"] = purl
            package["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
        if "In" in part:
            component["properties"] = [{"name": "qkv:in", "value": part["In"]}]
            package["comment"] = "in: " + part["In"]
        components.append(component)
        packages.append(package)
        kind = "CONTAINS" if part["Files"] != "qkv" else "DESCRIBES"
        start = "SPDXRef-qkv" if part["Files"] != "qkv" else "SPDXRef-DOCUMENT"
        relations.append({"spdxElementId": start, "relationshipType": kind, "relatedSpdxElement": package["SPDXID"]})
    name = f"qkv-{own}"
    cyclone = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": date, "component": components[0]},
    }
    cyclone["components"] = components[1:]
    spdx = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:qkv:{own}:{hashlib.sha256(json.dumps(packages).encode()).hexdigest()[:32]}",
        "creationInfo": {
            "created": date,
            "creators": ["Tool: qkv-packaging/third_parties.py", "Organization: qkv maintainers"],
        },
        "packages": packages,
        "relationships": relations,
    }
    for ending, content in (("spdx", spdx), ("cdx", cyclone)):
        Path(folder, f"{name}.{ending}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(check() if sys.argv[1:] == ["check"] else bills(sys.argv[2]))
