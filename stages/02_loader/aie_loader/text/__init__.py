"""Text to token ids and back. The `tokenizers` library does the merging; what files say is read and checked here.

tokenizer.py                            the interface
batch.py                                many texts: truncation, padding, pairs
incremental.py                          one token at a time, for streams
folder.py, folder_config.py             a Hugging Face folder, with or without tokenizer.json
gguf_vocabulary.py, pieces.py           a GGUF file's vocabulary; SentencePiece's pieces with their scores
splits.py, byte_level.py, charsmap.py   how text is cut before merging; bytes as letters; normalization maps
sentencepiece_file.py                   a `.model` file, read by hand
special_tokens.py, library_errors.py    what stands around a text; the library's panics as errors of ours
"""
