// SPDX-License-Identifier: Apache-2.0
// nanoGPT's train.py with its file of assignments, which is read as literals and never executed.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/dataset_names.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/nanogpt/options.inc"
    ;
const bool kTables = add_option_tables("nanogpt", kRows);

json::Value word_value(std::string_view word) {
  return json::Value::string(std::string(word));
}
json::Value whole(double value) {
  return json::Value::integer(static_cast<std::int64_t>(value));
}

// data/NAME of the checkout or of the current folder: its tokens, or its text if they stand for
// characters.
void set_data(Meaning& meaning) {
  const Setting* const dataset = meaning.find("@dataset");
  const std::string name = dataset->value.as_string();
  std::error_code ignored;
  for (const fs::path& top : {fs::path(meaning.script).parent_path() / "data", fs::path("data")}) {
    const fs::path folder = top / name;
    const fs::path tokens = folder / "train.bin", text = folder / "input.txt";
    const bool characters = fs::exists(folder / "meta.pkl", ignored);
    if (characters && fs::exists(text, ignored)) {
      meaning.note(
          fmt::format("{}: its tokens are numbers of characters; the text next to them is "
                      "read instead, a token a byte, and its last tenth is held out",
                      tokens.string()));
      meaning.set("data.train", json::Value::string(text.string()), dataset);
      meaning.set("data.validation_fraction", json::Value::number(0.1), dataset);
      return;
    }
    if (!fs::exists(tokens, ignored)) continue;
    meaning.set("data.train", json::Value::string(tokens.string()), dataset);
    if (fs::exists(folder / "val.bin", ignored))
      meaning.set("data.validation", json::Value::string((folder / "val.bin").string()), dataset);
    meaning.set("tokenizer.type", word_value("gpt2"));
    if (meaning.value("model.from") == nullptr)
      meaning.set("model.vocab_size", json::Value::integer(50304));
    return;
  }
  if (const auto found = find_dataset(name, "")) {
    meaning.set("data.train", json::Value::string(found->string()), dataset);
    meaning.set("data.validation_fraction", json::Value::number(0.0005), dataset);
    return;
  }
  meaning.refuse(
      fmt::format("{} {}: there is no data/{} on this machine", dataset->flag, name, name),
      "prepare it as nanoGPT does, or put its text into a folder of TESSERA_DATA");
}

void set_model(Meaning& meaning) {
  const Setting* const init = meaning.find("@init");
  const std::string from = init->value.as_string();
  const json::Value dropout = meaning.find("@dropout")->value;
  if (from.starts_with("gpt2")) {
    meaning.drop("model");
    huggingface::use_model(meaning, init);
  } else if (from == "scratch" || from == "resume") {
    meaning.set("model.family", word_value("gpt2"));
    meaning.copy("model.max_positions", meaning.find("data.sequence_length"));
    meaning.set("model.activation", word_value("gelu"));
    if (!meaning.is_on("@bias"))
      meaning.note("the model has biases, which begin at 0; nanoGPT's has none with bias=False");
  } else {
    meaning.refuse(fmt::format("{} {} is not supported", init->flag, from),
                   "use scratch, resume, gpt2, gpt2-medium, gpt2-large or gpt2-xl");
    return;
  }
  if (dropout.as_double() == 0) return;
  meaning.set("model.dropout", dropout, meaning.find("@dropout"));
}

// lr (n + 1) / (warm-up + 1), then half a cosine: Megatron-LM's schedule with a first rate.
void set_schedule(Meaning& meaning) {
  if (!meaning.is_on("@decays")) {
    meaning.set("scheduler.type", word_value("constant"), meaning.find("@decays"));
    return;
  }
  const double warmup = meaning.number("@warmup").value_or(0);
  const double rate = meaning.number("optimizer.lr").value_or(0);
  meaning.set("scheduler.type", word_value("Megatron"), meaning.find("@decays"));
  meaning.set("scheduler.lr_decay_style", word_value("cosine"), meaning.find("@decays"));
  meaning.copy("scheduler.lr_warmup_iters", meaning.find("@warmup"));
  if (warmup > 0)
    meaning.set("scheduler.lr_warmup_init",
                json::Value::number(rate / (warmup + 1)),
                meaning.find("@warmup"));
  meaning.copy("scheduler.lr_decay_iters", meaning.find("@decay_steps"));
  meaning.copy("scheduler.min_lr", meaning.find("@lowest"));
}

void set_batch(Meaning& meaning) {
  const Setting* const accumulation = meaning.find("@accumulation");
  const auto ranks = static_cast<double>(meaning.ranks.value_or(1));
  const double each = accumulation->value.as_double() / ranks;
  if (each < 1 || each != static_cast<double>(static_cast<std::int64_t>(each))) {
    meaning.refuse(fmt::format("{} {}: not divisible by {} ranks",
                               accumulation->flag,
                               accumulation->value.dump(),
                               ranks),
                   "give a multiple of the ranks");
    return;
  }
  meaning.set("gradient_accumulation_steps", whole(each), accumulation);
}

void train(Meaning& meaning) {
  set_model(meaning);
  set_data(meaning);
  set_schedule(meaning);
  set_batch(meaning);
  meaning.set("optimizer.type", word_value("AdamW"));
  meaning.set("optimizer.betas",
              json::Value::array({meaning.find("@beta1")->value, meaning.find("@beta2")->value}),
              meaning.find("@beta1"));
  // Updates 0 to max_iters.
  meaning.set(
      "trainer.max_steps", whole(meaning.number("@steps").value_or(0) + 1), meaning.find("@steps"));
  const Setting* const every = meaning.find("@eval_interval");
  meaning.copy("eval.every", every);
  meaning.copy("eval.micro_batch", meaning.find("train_micro_batch_size_per_gpu"));
  if (meaning.is_on("@always")) {
    meaning.copy("checkpoint.every", every);
  } else {
    meaning.set("checkpoint.every", json::Value::integer(0), meaning.find("@always"));
    meaning.set("checkpoint.best", json::Value::boolean(true), meaning.find("@always"));
  }
  const json::Value* const held = meaning.value("data.validation");
  if (held == nullptr && meaning.value("data.validation_fraction") == nullptr) {
    meaning.drop("eval");
    meaning.drop("checkpoint.best");
  }
  if (meaning.value("wandb.enabled") != nullptr) {
    meaning.copy("wandb.project", meaning.find("@project"));
    meaning.copy("wandb.name", meaning.find("@name"));
  }
  const std::string type = meaning.text("@dtype");
  const bool cpu = meaning.text("@device").starts_with("cpu");
  if (type == "bfloat16" && !cpu) {
    meaning.set("bf16.enabled", json::Value::boolean(true), meaning.find("@dtype"));
  } else if (type == "float16" && !cpu) {
    meaning.set("fp16.enabled", json::Value::boolean(true), meaning.find("@dtype"));
    meaning.set("fp16.scaler", word_value("megatron"), meaning.find("@dtype"));
  } else if (type != "bfloat16" && type != "float16" && type != "float32") {
    meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@dtype")->flag, type),
                   "use float32, bfloat16 or float16");
  }
}

const bool kPrograms = add_programs(
    {{.title = "nanoGPT's train.py",
      .names = {"train.py"},
      .folders = {"nanoGPT", "nanogpt"},
      .marks =
          {"config/", "block_size", "n_layer", "n_embd", "max_iters", "eval_iters", "init_from"},
      .tables = {"nanogpt/train"},
      .rules = train,
      .file = "-"},
     {.title = "nanoGPT's sample.py",
      .names = {"sample.py"},
      .folders = {"nanoGPT", "nanogpt"},
      .marks = {"out_dir", "init_from", "num_samples", "max_new_tokens"},
      .tables = {"nanogpt/train"},
      .refused = "it writes texts of a trained model, which is a command of its own here",
      .instead = "tessera generate RUN --prompt TEXT"}});

}  // namespace
}  // namespace tessera::interop
