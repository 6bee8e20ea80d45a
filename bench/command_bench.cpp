// SPDX-License-Identifier: Apache-2.0
// How long it takes to read commands of other programs: the least and the median of 100 readings.
// Run it in an empty folder, in which it writes a model's config.json, a text and YAML files.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/interop/foreign_command.h"

namespace {

void write(const std::string& file, const std::string& text) {
  std::ofstream(file) << text;
}

void measure(const std::string& line) {
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) {
    const auto start = std::chrono::steady_clock::now();
    tessera::interop::read_foreign_command(tessera::text::split(line, ' '));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  const double first = times.front();
  std::sort(times.begin(), times.end());
  std::printf("first %6.2f ms, least %6.2f ms, median %6.2f ms  %.60s\n",
              first,
              times.front(),
              times[times.size() / 2],
              line.c_str());
}

}  // namespace

int main() try {
  std::filesystem::create_directories("m");
  std::filesystem::create_directories("d");
  write("m/config.json", R"({"model_type": "llama"})");
  write("t.txt", "one two three\n");
  write("d/train.jsonl", R"({"prompt": "a", "completion": "b"})");
  write("x.yml",
        "base_model: m\ndatasets:\n  - path: d/train.jsonl\n    type: chat_template\n"
        "sequence_len: 64\nmicro_batch_size: 2\nlearning_rate: 0.0002\n");
  measure(
      "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path m --train_file t.txt "
      "--do_train");
  measure("accelerate launch --num_processes 8 dpo.py --model_name_or_path m --dataset_name d");
  measure(
      "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 "
      "--num-attention-heads 12 --seq-length 1024 --micro-batch-size 4 --lr 1e-4 --train-iters 100 "
      "--data-path p --tokenizer-type NullTokenizer --vocab-size 100");
  measure("axolotl train x.yml");
  write("model.json",
        R"({"emb_size": 768, "hidden_size": 768, "feedforward_size": 3072, "heads_num": 12,
            "layers_num": 12, "embedding": ["word", "pos", "seg"], "target": ["mlm", "sp"]})");
  write("train.tsv", "label\ttext_a\n0\tone\n");
  std::string tokens;
  for (int i = 0; i < 21128; ++i)
    tokens += "token" + std::to_string(i) + "\n";
  write("vocab.txt", tokens);
  measure(
      "python3 finetune/run_classifier.py --vocab_path vocab.txt --config_path model.json "
      "--train_path train.tsv --dev_path train.tsv --batch_size 32");
  measure("python train.py --dataset=t.txt --n_layer=4 --max_iters=100");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
