"""A loaded model back into files: what loading undid (names, orders of rows, transpositions) done again.

to_path.py                  the interface: written beside the target, read back, compared, renamed
writing.py                  one GGUF file, or one safetensors folder
tensors.py                  weights in the names, shapes and orders of a format
gguf_keys.py, config_json.py, vocabulary.py   configuration and tokenizer in a format's words
check.py                    what a format has no word for is found by reading back
"""
