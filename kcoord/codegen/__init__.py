"""Build time only: JSON message schemas in, typed Python out. Nothing at run time imports this package."""
