"""YAML files of the user: read safely, and strictly. A key that is given twice is a mistake, not the last one's."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from latemask.errors import UserError


def read_yaml(path: Path, what: str) -> Any:
    """Return what a file holds, or say that it is no YAML `what`."""
    try:
        return yaml.load(path.read_text("utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a YAML {what}: {' '.join(str(error).split())[:300]}") from None


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's own, which reads plain values alone; but it would take the last of two equal keys without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if doubled := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"'{doubled[0]}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)
