"""Run by a peer's Python (torch, transformers): the same requests generated greedily in batches as large as the number
of clients, padded on the left, each row for as many tokens as it wants. There is no server, so this is the library at
its best: no HTTP, no waiting for company, nothing between one batch and the next.

Reads one JSON line {"prompts": [...], "max_tokens": [...], "batch": n} after another, answers {"seconds", "tokens"}.
"""

import argparse
import json
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        # Rows of like length together: less of a batch is spent on rows that have ended already.
        order = sorted(range(len(task["prompts"])), key=lambda index: task["max_tokens"][index])
        began = time.perf_counter()
        for first in range(0, len(order), task["batch"]):
            rows = order[first : first + task["batch"]]
            wanted = [task["max_tokens"][row] for row in rows]
            batch = tokenizer([task["prompts"][row] for row in rows], return_tensors="pt", padding=True)
            with torch.inference_mode():
                model.generate(**batch, do_sample=False, min_new_tokens=max(wanted), max_new_tokens=max(wanted))
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "tokens": sum(task["max_tokens"])}), flush=True)


if __name__ == "__main__":
    main()
