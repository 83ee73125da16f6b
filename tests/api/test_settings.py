"""Settings from flags and environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.settings import Settings, SettingsError, read_settings

VALUES = {
    "target": "m",
    "draft": "d",
    "gamma": "4",
    "served_model_name": "n",
    "host": "::1",
    "port": "9000",
    "dtype": "bfloat16",
    "device": "cuda:1",
    "threads": "3",
    "drafter": "none",
    "verifier": "csd",
    "allow_csd": "true",
    "csd_lambda": "3",
    "csd_tau": "0.1",
    "csd_rule": "scg",
    "store": "redis://:secret@localhost/0",
    "store_ttl": "60",
    "ocm_entries": "10",
    "ocm_half_life": "100",
    "admin_key": "root",
    "max_nodes": "256",
    "policy": "paper",
    "prior_rows": "5",
    "max_context": "100",
    "max_running": "2",
    "max_queued": "0",
    "max_body_bytes": "5000",
    "max_prompt_tokens": "50",
    "max_prompt_chars": "500",
    "max_output_tokens": "40",
    "max_per_key": "3",
    "prefill_chunk": "16",
    "warm_start": "false",
    "kv_memory_fraction": "0.5",
    "cache_dir": "some-cache",
    "api_keys": "a,b",
    "open_routes": "health,READY",
    "cors_origins": "https://a.example,http://localhost:3000",
    "allowed_hosts": "Chat.example.com, *.lan",
    "header_timeout": "5",
    "text_queue_bytes": "1000",
    "split_reasoning": "0",
    "parse_special_tokens": "1",
    "body_timeout": "20",
    "request_timeout": "1.5",
    "stuck_after": "5",
    "max_failures": "7",
    "max_conversations": "3",
    "conversation_memory": "1000000",
    "conversation_idle": "60",
    "unread_bytes": "1000",
    "unread_timeout": "20",
    "shutdown_grace": "0",
    "log_level": "DEBUG",
    "self_check": "0",
    "workers": "1",
}


def test_every_setting_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("x")
    (tmp_path / "keys").write_text("# team one\nc\n\n  d \n")
    values = {**VALUES, "chat_template": str(tmp_path / "template.jinja"), "api_keys_file": str(tmp_path / "keys")}
    assert set(values) == set(Settings.model_fields)
    for name, value in values.items():
        monkeypatch.setenv(f"RACER_{name.upper()}", value)
    found = read_settings()
    assert found == read_settings(values)
    assert (found.port, found.keys, found.warm_start, found.self_check) == (9000, ("a", "b"), False, False)
    assert (found.allowed_hosts, found.header_timeout, found.body_timeout) == (("chat.example.com", "*.lan"), 5.0, 20.0)
    assert (found.open_routes, found.cors_origins) == (("health", "ready"), ("https://a.example", "http://localhost:3000"))
    assert (found.log_level, found.served_name, found.max_nodes) == ("debug", "n", 256)


def test_flags_win_and_empty_variables_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACER_PORT", "9000")
    monkeypatch.setenv("RACER_THREADS", "")
    assert read_settings({"port": "9001", "threads": None}).port == 9001
    assert read_settings().threads is None
    assert read_settings().port == 9000
    assert read_settings().served_name == "smollm2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "x"),
        ("port", "70000"),
        ("max_nodes", "0"),
        ("max_nodes", "257"),
        ("dtype", "int4"),
        ("device", "tpu"),
        ("drafter", "x"),
        ("policy", "x"),
        ("threads", "0"),
        ("verifier", "lossy"),
        ("csd_lambda", "-1"),
        ("csd_tau", "0"),
        ("csd_tau", "1.5"),
        ("csd_rule", "static"),
        ("store_ttl", "0"),
        ("ocm_entries", "0"),
        ("ocm_half_life", "0.5"),
        ("kv_memory_fraction", "1.5"),
        ("chat_template", "/no/such/file"),
        ("request_timeout", "0"),
        ("request_timeout", "nan"),
        ("request_timeout", "inf"),
        ("unread_bytes", "0"),
        ("unread_timeout", "0"),
        ("shutdown_grace", "inf"),
        ("shutdown_grace", "nan"),
        ("api_keys", ","),
        ("api_keys", " , ,"),
        ("api_keys", " "),
        ("api_keys_file", "/no/such/file"),
        ("api_keys_file", "/dev/null"),
        ("max_per_key", "0"),
        ("open_routes", "admin"),
        ("open_routes", "none,health"),
        ("cors_origins", "example.com"),
        ("allowed_hosts", "https://example.com"),
        ("allowed_hosts", "example.com:80"),
        ("allowed_hosts", "a.*"),
        ("header_timeout", "0"),
        ("cors_origins", "https://example.com/"),
        ("cors_origins", "null"),
        ("stuck_after", "0"),
        ("max_failures", "0"),
        ("warm_start", "maybe"),
        ("workers", "2"),
        ("log_level", "loud"),
    ],
)
def test_bad_values_name_the_setting(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    flag = "--" + name.replace("_", "-")
    for flags in ({name: value}, {}):
        monkeypatch.setenv(f"RACER_{name.upper()}", value)
        with pytest.raises(SettingsError) as error:
            read_settings(flags)
        assert name in str(error.value)
        assert flag in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "full"),
    [("bf16", "bfloat16"), ("FP16", "float16"), ("fp32", "float32"), ("float32", "float32"), ("Auto", "auto")],
)
def test_a_dtype_has_one_name_however_it_is_spelt(given: str, full: str) -> None:
    assert read_settings({"dtype": given}).dtype == full


def test_a_path_is_served_under_its_last_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "small.q8.gguf").touch()
    monkeypatch.chdir(tmp_path / "my-model")
    for target, name in (
        (str(tmp_path / "my-model"), "my-model"),
        (f"{tmp_path}/my-model/", "my-model"),
        (".", "my-model"),
        ("../small.q8.gguf", "small.q8"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    ):
        assert read_settings({"target": target}).served_name == name
    assert read_settings({"target": ".", "served_model_name": "mine"}).served_name == "mine"


def test_keys_are_not_shown() -> None:
    found = read_settings({"api_keys": " secret , ,other"})
    assert found.keys == ("secret", "other")
    assert "secret" not in repr(found)


def test_every_setting_is_described() -> None:
    for name, field in Settings.model_fields.items():
        assert re.match(r"^\w.{10,}[^.]$", field.description or ""), name
