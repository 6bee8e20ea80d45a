// SPDX-License-Identifier: Apache-2.0
// torchtitan's train.py: the sections of its TOML file.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/dataset_names.h"
#include "tessera/interop/huggingface/trainer_rules.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/torchtitan/command_models.h"

namespace tessera::interop {
namespace {

using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/torchtitan/options.inc"
    ;
const bool kTables = add_option_tables("torchtitan", kRows);

json::Value word_value(std::string_view word) {
  return json::Value::string(std::string(word));
}
json::Value whole(double value) {
  return json::Value::integer(static_cast<std::int64_t>(value));
}

void set_model(Meaning& meaning) {
  const Setting *const name = meaning.find("@model"), *const flavor = meaning.find("@flavor");
  const std::string model = text::lower(meaning.text("@model"));
  const auto sizes = torchtitan::model_of(
      model,
      meaning.text("@flavor"),
      static_cast<std::int64_t>(meaning.number("data.sequence_length").value_or(0)));
  if (!sizes) {
    meaning.refuse(fmt::format("{} {}: the sizes of {} are part of torchtitan",
                               name->flag,
                               model,
                               meaning.text("@flavor")),
                   fmt::format("{} are known; else write the model: tessera init --model NAME",
                               torchtitan::known_flavors()));
    return;
  }
  for (const auto& [key, value] : sizes->members())
    meaning.set("model." + key, value, flavor);
  if (meaning.text("@flavor").ends_with("_irope"))
    meaning.set("data.separate_documents", json::Value::boolean(true), flavor);
  if (const Setting* const load = meaning.given("@load")) {
    huggingface::use_model(meaning, load);
    const json::Value* const from = meaning.value("model.from");
    if (from != nullptr) {
      const json::Value path = *from;
      meaning.drop("model");
      meaning.set("model.from", path, load);
    }
  } else if (const Setting* const tokenizer = meaning.given("@tokenizer")) {
    huggingface::set_tokenizer(meaning, *tokenizer);
  }
  for (const std::string& converter : meaning.texts("@converters")) {
    const bool quantized =
        converter.find("float8") != std::string::npos || converter.find("mx") != std::string::npos;
    meaning.refuse(
        fmt::format("{} {}", meaning.find("@converters")->flag, converter),
        quantized ? "there is no such precision: remove it, and use bfloat16" : "remove it");
  }
}

// A data set by its name or path.
void set_data(Meaning& meaning, const char* name, const char* path, const char* key) {
  const Setting* const from =
      meaning.given(path) != nullptr ? meaning.given(path) : meaning.find(name);
  if (from == nullptr) {
    meaning.refuse(fmt::format("{} without data", meaning.program), "add --training.dataset_path");
    return;
  }
  const auto found = find_dataset(from->value.as_string(), "");
  if (!found) {
    meaning.refuse(
        fmt::format("{} {}: there is no such data set on this machine",
                    from->flag,
                    from->value.as_string()),
        "name its folder with --training.dataset_path, or with --validation.dataset_path");
    return;
  }
  meaning.set(key, json::Value::string(found->string()), from);
}

void set_optimizer(Meaning& meaning) {
  const std::string name = meaning.text("@optimizer");
  if (name != "AdamW" && name != "Adam") {
    meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@optimizer")->flag, name),
                   "use AdamW or Adam");
    return;
  }
  meaning.copy("optimizer.type", meaning.find("@optimizer"));
  meaning.set("optimizer.betas",
              json::Value::array({meaning.find("@beta1")->value, meaning.find("@beta2")->value}),
              meaning.find("@beta1"));
  meaning.copy("optimizer.eps", meaning.find("@epsilon"));
  meaning.set("optimizer.decay_all", json::Value::boolean(true));
}

// Its rate of update n is (n + 1) / warm-up, or that of what remains behind it.
void set_schedule(Meaning& meaning) {
  const double steps = meaning.number("trainer.max_steps").value_or(0);
  const double warmup = std::min(meaning.number("@warmup").value_or(0), steps);
  const Setting* const ratio = meaning.given("@decay_ratio");
  double decay = steps - warmup;
  if (ratio != nullptr) {
    decay = std::nearbyint(steps * ratio->value.as_double());
    if (!(decay >= 0) || warmup + decay > steps) {
      meaning.refuse(fmt::format("{} {}: warm-up and decay are longer than the training",
                                 ratio->flag,
                                 ratio->value.dump()),
                     "lower it, or lower lr_scheduler.warmup_steps");
      return;
    }
  }
  const std::string shape = meaning.text("@decay_type");
  const bool known = shape == "linear" || shape == "cosine";
  const Setting* const type = meaning.find("@decay_type");
  if (!known && shape != "sqrt") {
    meaning.refuse(fmt::format("{} {} is not supported", type->flag, shape),
                   "use linear, sqrt or cosine");
    return;
  }
  meaning.set("scheduler.type", word_value("warmup_stable_decay"), type);
  meaning.set("scheduler.decay_type", word_value(known ? shape : "1-sqrt"), type);
  meaning.set("scheduler.num_warmup_steps", whole(warmup), meaning.find("@warmup"));
  meaning.set("scheduler.num_decay_steps", whole(decay), ratio);
  meaning.copy("scheduler.min_lr_ratio", meaning.find("@lowest"));
  meaning.note("the warm-up begins at 0, torchtitan's at the rate of its first step");
}

void set_batch(Meaning& meaning) {
  const double global = meaning.number("@global_batch").value_or(-1);
  if (global > 0) {
    meaning.set("train_batch_size", whole(global), meaning.find("@global_batch"));
  } else {
    meaning.set("gradient_accumulation_steps", json::Value::integer(1));
  }
}

// Ranks that divide experts. Experts hold whole tokens here, so that tensor-parallel ranks do not
// split them between layers.
void set_experts(Meaning& meaning) {
  if (meaning.value("model.moe.num_experts") == nullptr) return;
  if (meaning.number("@expert").value_or(1) > 1)
    meaning.copy("parallel.expert", meaning.find("@expert"));
  if (meaning.number("@expert_tensor").value_or(1) > 1)
    meaning.copy("parallel.expert_tensor", meaning.find("@expert_tensor"));
  meaning.drop("parallel.sequence");
}

void set_layout(Meaning& meaning) {
  const double shard = meaning.number("@shard").value_or(-1);
  const double replicate = meaning.number("@replicate").value_or(1);
  const std::string reshard = meaning.text("@reshard");
  const std::int64_t stage = shard == 1 ? 0 : reshard == "never" ? 2 : 3;
  meaning.set("zero_optimization.stage", json::Value::integer(stage), meaning.find("@shard"));
  if (stage > 0 && replicate > 1)
    meaning.note("states are divided among all ranks, not only within a replica");
  if (meaning.number("parallel.tensor.size").value_or(1) > 1)
    meaning.set(
        "parallel.sequence", json::Value::boolean(true), meaning.find("parallel.tensor.size"));
  set_experts(meaning);
  if (meaning.number("parallel.pipeline.size").value_or(1) > 1) {
    static constexpr auto kSchedules = std::to_array<std::pair<std::string_view, std::string_view>>(
        {{"1f1b", "1f1b"},
         {"gpipe", "gpipe"},
         {"interleaved1f1b", "interleaved"},
         {"zbvzerobubble", "zb-v"}});
    const std::string name = text::lower(meaning.text("@schedule"));
    const auto found =
        std::ranges::find_if(kSchedules, [&](const auto& one) { return one.first == name; });
    if (found == kSchedules.end()) {
      meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@schedule")->flag, name),
                     "use 1F1B, GPipe, Interleaved1F1B or ZBVZeroBubble");
    } else {
      meaning.set(
          "parallel.pipeline.schedule", word_value(found->second), meaning.find("@schedule"));
      if (name == "interleaved1f1b")
        meaning.set("parallel.pipeline.chunks", json::Value::integer(2), meaning.find("@schedule"));
    }
  }
  const std::string recompute = text::lower(meaning.text("@recompute"));
  if (recompute == "full" || recompute == "selective") {
    meaning.set(
        "activation_checkpointing.granularity", word_value(recompute), meaning.find("@recompute"));
    if (recompute == "selective" && meaning.text("@recompute_what") != "op")
      meaning.note("selective recomputation recomputes the attention of every layer");
  } else if (recompute != "none") {
    meaning.refuse(
        fmt::format("{} {} is not supported", meaning.find("@recompute")->flag, recompute),
        "use none, selective or full");
  }
}

void set_precision(Meaning& meaning) {
  const std::string word = meaning.text("@precision");
  if (word == "bfloat16") {
    meaning.set("bf16.enabled", json::Value::boolean(true), meaning.find("@precision"));
  } else if (word != "float32") {
    meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@precision")->flag, word),
                   "use bfloat16 or float32");
  }
  if (meaning.text("@reduce") == "bfloat16")
    meaning.set("communication_data_type", word_value("bf16"), meaning.find("@reduce"));
}

void set_saving(Meaning& meaning) {
  if (meaning.is_on("@saves")) {
    meaning.copy("checkpoint.every", meaning.find("@interval"));
    const Setting* const keep = meaning.find("@keep");
    if (keep != nullptr && keep->value.as_double() >= 1) meaning.copy("checkpoint.keep", keep);
  } else {
    meaning.set("checkpoint.every", json::Value::integer(0));
  }
  if (!meaning.is_on("@validates")) {
    meaning.drop("eval");
    return;
  }
  set_data(meaning, "@validation", "@validation_path", "data.validation");
  meaning.copy("eval.every", meaning.find("@validation_every"));
  if (meaning.number("@validation_steps").value_or(-1) > 0)
    meaning.copy("eval.batches", meaning.find("@validation_steps"));
}

void train(Meaning& meaning) {
  set_model(meaning);
  set_data(meaning, "@dataset", "@dataset_path", "data.train");
  set_optimizer(meaning);
  set_schedule(meaning);
  set_batch(meaning);
  set_layout(meaning);
  set_precision(meaning);
  set_saving(meaning);
}

const bool kPrograms = add_programs({{.title = "torchtitan's train.py",
                                      .names = {"train.py", "torchtitan.train"},
                                      .folders = {"torchtitan"},
                                      .marks = {"job.config_file"},
                                      .tables = {"torchtitan/train"},
                                      .rules = train,
                                      .file = "job.config_file",
                                      .nested = {{"job", ""},
                                                 {"profiling", ""},
                                                 {"metrics", ""},
                                                 {"model", ""},
                                                 {"optimizer", ""},
                                                 {"lr_scheduler", ""},
                                                 {"training", ""},
                                                 {"parallelism", ""},
                                                 {"experimental", ""},
                                                 {"checkpoint", ""},
                                                 {"activation_checkpoint", ""},
                                                 {"compile", ""},
                                                 {"float8", ""},
                                                 {"quantize", ""},
                                                 {"quantize.linear", ""},
                                                 {"quantize.linear.float8", ""},
                                                 {"quantize.linear.mx", ""},
                                                 {"quantize.grouped_mm", ""},
                                                 {"quantize.grouped_mm.float8", ""},
                                                 {"quantize.grouped_mm.mx", ""},
                                                 {"comm", ""},
                                                 {"debug", ""},
                                                 {"fault_tolerance", ""},
                                                 {"validation", ""},
                                                 {"memory_estimation", ""}}}});

}  // namespace
}  // namespace tessera::interop
