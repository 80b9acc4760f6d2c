"""Writes tests/tokenizers/chat_reference.json: conversations as transformers writes them by chat templates of the forms that the trainer
recognises, and templates that it refuses. Run with transformers in PYTHONPATH (./dev deps interchange)."""
import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

SMOLLM2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}"""
CHATML = """{% for message in messages %}{{ "<|im_start|>" + message["role"] + "\\n" + message["content"] + "<|im_end|>" + "\\n" }}{% endfor %}"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"""
TEMPLATES = {"smollm2": SMOLLM2, "qwen2.5": QWEN25, "chatml": CHATML, "llama2": LLAMA2, "llama3": LLAMA3}
REFUSED = {
    "thinking": CHATML.replace("+ message[\"content\"]", "+ '<think>' + message['reasoning_content']"),
    "trimmed chatml": CHATML.replace('message["content"]', 'message["content"] | trim'),
    "mistral": "{% for message in messages %}{{ bos_token + '[INST] ' + message['content'] + ' [/INST]' }}{% endfor %}",
    "dates": LLAMA3.replace("{{ content }}", "{{ 'Cutting Knowledge Date: December 2023' }}{{ content }}"),
    "zephyr": "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}{% endfor %}",
    "none": "",
}
SAYINGS = ["Hello.", "  white space\n around \u00a0\u3000 ", "", "\n\nlines\n", "Ünïcödé 東京 😀", "{{ bos_token }}", "'quoted' \"twice\"", "\x1c a \x85"]


def said(roles, first):
    return [{"role": role, "content": SAYINGS[(first + 3 * i) % len(SAYINGS)]} for i, role in enumerate(roles)]


def main():
    orders = [["user", "assistant"], ["system", "user", "assistant"], ["user", "assistant", "user", "assistant"], ["system", "user"],
              ["user", "user", "assistant"], ["assistant"], ["user", "system", "assistant"], ["system", "user", "assistant", "user", "assistant"]]
    conversations = [said(roles, first) for first in range(len(SAYINGS)) for roles in orders]

    def written(template, messages):
        names = {"bos_token": "<s>" if template == LLAMA2 else "<|begin_of_text|>", "eos_token": "</s>"}
        try:
            return render_jinja_template([messages], chat_template=template, **names)[0][0]
        except Exception as error:  # the template's own: roles that do not take turns
            assert "turns" in str(error), error
            return None

    reference = {"conversations": conversations, "refused": REFUSED,
                 "templates": [{"name": name, "jinja": template, "written": [written(template, each) for each in conversations]}
                               for name, template in TEMPLATES.items()]}
    to = pathlib.Path(__file__).resolve().parents[1] / "tokenizers/chat_reference.json"
    to.write_text(json.dumps(reference, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
