"""When the tool that builds the compiled tree compiles again."""

from __future__ import annotations

from tools import compile as compile_tool


def test_a_change_of_any_compiled_module_compiles_again() -> None:
    """Otherwise the tree would get the new source and keep the native code of the old one."""
    folders = tuple(f"kcoord/{folder}/" for folder in compile_tool.NATIVE_FOLDERS)
    modules = compile_tool.hot_modules()
    assert len(modules) > 100
    assert [module for module in modules if not module.startswith(folders)] == []
