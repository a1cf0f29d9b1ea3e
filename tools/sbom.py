"""The software bill of materials of a release, in CycloneDX's format."""

from __future__ import annotations

import hashlib
import re
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def render(project: dict[str, Any], version: str, artifacts: list[Path], cuda: bool, date: int) -> str:
    """JSON of CycloneDX 1.6; the same arguments give the same text.

    Args:
        project: pyproject.toml's [project].
        version: of this package.
        artifacts: the files that are released; their SHA-256 is in the bill.
        cuda: whether the artifacts link NVIDIA's CUDA runtime statically.
        date: seconds since 1970.
    """
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from cyclonedx.model.contact import OrganizationalEntity
    from cyclonedx.model.license import LicenseExpression
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL

    def python_package(requirement: str, scope: ComponentScope, extra: str = "") -> Component:
        name, allowed = re.match(r"([A-Za-z0-9._-]+)(.*)", requirement.replace(" ", "")).groups()  # type: ignore[union-attr]
        properties = [Property(name="edge-ops:requirement", value=allowed or "any version")]
        if extra:
            properties.append(Property(name="edge-ops:extra", value=extra))
        return Component(
            name=name, type=ComponentType.LIBRARY, scope=scope, bom_ref=f"pypi/{name}",
            purl=PackageURL("pypi", name=name), properties=properties,
        )  # fmt: skip

    own = Component(
        name=project["name"], version=version, type=ComponentType.LIBRARY, bom_ref=project["name"],
        description=project["description"], purl=PackageURL("pypi", name=project["name"], version=version),
        licenses=[LicenseExpression(project["license"])],
    )  # fmt: skip
    required = [python_package(text, ComponentScope.REQUIRED) for text in project["dependencies"]]
    if cuda:
        required.append(
            Component(
                name="cudart_static", bom_ref="cudart_static",
                type=ComponentType.LIBRARY, scope=ComponentScope.REQUIRED,
                supplier=OrganizationalEntity(name="NVIDIA"), description="CUDA runtime, linked statically",
            )
        )  # fmt: skip
    optional: dict[str, Component] = {}
    for extra, requirements in project.get("optional-dependencies", {}).items():
        for text in requirements:
            component = python_package(text, ComponentScope.OPTIONAL, extra)
            optional.setdefault(component.name, component)
    files = [
        Component(
            name=path.name, type=ComponentType.FILE, bom_ref=f"file/{path.name}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())],
        )
        for path in artifacts
    ]  # fmt: skip
    bill = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"pkg:pypi/{project['name']}@{version}#{date}"),
        components=[*required, *optional.values(), *files],
    )
    bill.metadata.timestamp = datetime.fromtimestamp(date, timezone.utc)
    bill.metadata.component = own
    bill.register_dependency(own, [*required, *optional.values()])
    text: str = make_outputter(bill, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    return text + "\n"
