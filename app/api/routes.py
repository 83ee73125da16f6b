"""All routes of the service: their paths, and those that the gate treats in a special way."""

from __future__ import annotations

from fastapi.routing import APIRoute

from app.api import generation_routes, model_routes, ocm_routes, operation_routes, pages

ROUTERS = tuple(module.router for module in (generation_routes, model_routes, operation_routes, ocm_routes, pages))
OPENAPI_PATH = "/openapi.json"
ADMIN = f"{ocm_routes.router.prefix}/"
_ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
PATHS = (*dict.fromkeys(route.path_format for route in _ROUTES), OPENAPI_PATH)
GENERATING = frozenset(route.path for route in generation_routes.router.routes if isinstance(route, APIRoute))


def label(path: str) -> str:
    """The route that a path belongs to, as one of PATHS; a path without a route is returned as it is."""
    return next((route.path_format for route in _ROUTES if route.path_regex.match(path)), path)
