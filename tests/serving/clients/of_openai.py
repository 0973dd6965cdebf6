"""Asks the decoder "m" by OpenAI's client: run by a Python that has it, with an address."""

import sys
from importlib import import_module

openai = import_module("openai")
client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
assert [each.id for each in client.models.list()] == ["m", "plain", "dense"]
found = client.completions.create(model="m", prompt="ab", max_tokens=5, temperature=0, stop=["fa"])
assert (found.choices[0].text, found.choices[0].finish_reason) == ("cde", "stop")
parts = client.completions.create(model="m", prompt="ab", max_tokens=5, temperature=0, stream=True)
assert "".join(part.choices[0].text for part in parts) == "cdefa"
said = ""
try:
    client.completions.create(model="none", prompt="ab")
except openai.NotFoundError as error:
    said = str(error)
assert "Latest(none)" in said
