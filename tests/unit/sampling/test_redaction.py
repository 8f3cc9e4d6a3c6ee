"""Command lines for storage: secrets are removed, and the program can still be recognised."""

from __future__ import annotations

import shlex

import pytest

from hybridbench.sampling.redaction import redacted, redacted_text, without_values

# No part of this may remain, wherever it occurs.
SECRET = "c4n4rY"


@pytest.mark.parametrize(
    "command",
    [
        f"vllm serve m --api-key {SECRET} --port 1",
        f"vllm serve m --api-key {SECRET} {SECRET}2",
        f"vllm serve m --api-key={SECRET}",
        f"vllm serve m --api_key {SECRET}",
        f"x --apiKey {SECRET}",
        f"x --hf-token {SECRET}",
        f"x --HF_TOKEN={SECRET}",
        f"x -token {SECRET}",
        f"x --admin-api-key {SECRET}",
        f"x --ssl-keyfile-password {SECRET}",
        f"x --secret-value {SECRET}",
        f"x --secret-key-base {SECRET}",
        f"env TLS_PRIVATE_KEY_PEM={SECRET} x",
        f"x --store 'AccountName=me;AccountKey={SECRET}==;EndpointSuffix=core.windows.net'",
        f"""x --config '{{"clientSecret": "{SECRET}"}}'""",
        f"x --password '{SECRET} {SECRET}'",
        f"env HF_TOKEN={SECRET} vllm serve m",
        f"env AWS_SECRET_ACCESS_KEY={SECRET} x",
        f"docker run -e OPENAI_API_KEY={SECRET} x",
        f"docker run --env=OPENAI_API_KEY={SECRET} x",
        f"x sk-{SECRET}abcdefgh",
        f"x hf_{SECRET}abcdefgh",
        f"x --model=hf_{SECRET}abcdefgh",
        f"x https://user:{SECRET}@host/path",
        f"x --proxy=http://{SECRET}@host:3128",
        f"x postgresql+asyncpg://u:{SECRET}@db/x",
        f"x 'https://host/v1?api_key={SECRET}&n=1'",
        f"x --model 'https://a.blob.core.windows.net/m.gguf?sv=2024&sp=r&sig={SECRET}%3D'",
        f"x --model 'https://b.s3.amazonaws.com/m.gguf?X-Amz-Signature={SECRET}&X-Amz-Expires=9'",
        f"curl -H 'Authorization: Bearer {SECRET}' http://h",
        f"curl -H 'authorization: {SECRET}' http://h",
        f"curl -H 'X-Api-Key: {SECRET} {SECRET}' http://h",
        f"curl -HAuthorization:{SECRET} http://h",
        f"curl -u admin:{SECRET} http://h",
        f"bash -c 'HF_TOKEN={SECRET} vllm serve m --api-key {SECRET} --port 1'",
        f"""bash -c 'curl -H "Authorization: Bearer {SECRET}" http://h'""",
        f"""x --config '{{"api_key": "{SECRET}", "n": 1}}'""",
        f"""x --config '{{"auth": {{"password":"{SECRET} {SECRET}"}}}}'""",
        f"x --key -----{SECRET}-----aaaaaaaaaa",
        f"x eyJ{SECRET}abcdef.{SECRET}.{SECRET}",
    ],
)
def test_no_secret_is_left(command: str) -> None:
    words = redacted(shlex.split(command))

    assert SECRET not in " ".join(words), words
    assert "[redacted]" in " ".join(words)
    assert words[0] == shlex.split(command)[0]


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve models/llama --max-num-batched-tokens 2048 --tokenizer t --tokenizer-mode auto",
        "python -m sglang.launch_server --model-path m --max-total-tokens 20000 --port 8301",
        "x --skip-tokenizer-init --max-tokens=16 --kv-cache-dtype fp8 --monkey 3 --keyboard us",
        "llama-server -m models/tiny.gguf --cache-ram 64 -np 4",
        "x --url http://127.0.0.1:8000/v1 --author me --bypass 1 --passes 3",
    ],
)
def test_what_is_no_secret_stays(command: str) -> None:
    words = shlex.split(command)

    assert list(redacted(words)) == words
    assert redacted_text(command) == command


@pytest.mark.parametrize(
    "line",
    [
        f"vllm serve m --api-key {SECRET} {SECRET} --port 1",
        f"non-default args: {{'api_key': ['{SECRET}'], 'port': 1}}",
        f"Namespace(api_key='{SECRET}', port=1)",
        f"headers={{'Authorization': 'Bearer {SECRET}'}}",
        f"curl -u admin:{SECRET} http://h",
        f"GET https://u:{SECRET}@host/x failed",
        f"HfHubHTTPError: token hf_{SECRET}abcdef is invalid",
    ],
)
def test_no_secret_is_left_in_a_line_of_a_log(line: str) -> None:
    assert SECRET not in redacted_text(line)


def test_an_option_ends_the_values_of_the_one_before_it() -> None:
    assert redacted(["x", "--api-key", "a", "b", "--port", "1", "m"]) == (
        "x", "--api-key", "[redacted]", "[redacted]", "--port", "1", "m",
    )  # fmt: skip


def test_the_end_of_a_program_is_told_without_what_was_sent_to_it() -> None:
    lines = [
        "INFO: request 'tell me a secret' came",
        "Traceback (most recent call last):",
        '  File "/srv/app.py", line 12, in serve',
        "    answer(prompt='tell me a secret')",
        "app.errors.BadPromptError: 'tell me a secret' is too long",
        "Fatal Python error: Segmentation fault",
        "RuntimeError",
    ]

    assert without_values(lines) == [
        "Traceback (most recent call last):",
        '  File "/srv/app.py", line 12, in serve',
        "app.errors.BadPromptError: [its message is left out]",
        "Fatal Python error: Segmentation fault",
        "RuntimeError: [its message is left out]",
        "[2 more lines are left out: messages may quote what was sent]",
    ]
