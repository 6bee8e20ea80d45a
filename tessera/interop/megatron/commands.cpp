// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's and Megatron-DeepSpeed's pretraining scripts: the model, schedule, layout and data
// of their options.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/megatron/command_batch.h"
#include "tessera/interop/megatron/command_data.h"
#include "tessera/interop/megatron/command_experts.h"
#include "tessera/interop/megatron/command_latent.h"
#include "tessera/interop/megatron/command_layout.h"
#include "tessera/interop/megatron/command_optimizer.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {
namespace {

using Setting = ForeignFlags::Setting;

constexpr std::string_view kRows =
#include "tessera/interop/megatron/options.inc"
    ;
const bool kTables = add_option_tables("megatron", kRows);

void set_word(Meaning& meaning, std::string_view key, const char* word, const Setting* from) {
  meaning.set(key, json::Value::string(word), from);
}
void set_on(Meaning& meaning, std::string_view key, bool on, const Setting* from) {
  meaning.set(key, json::Value::boolean(on), from);
}

// ---- the model ----

// Sizes that every family has under the same names are in the table; this is the rest.
struct GptShape {
  bool rotary = false, rms = false, gated = false, bias = true, untied = false, qk_norm = false;
  std::string activation = "gelu";
};

GptShape gpt_shape_of(Meaning& meaning) {
  GptShape out;
  const std::string position = meaning.text("@position", "learned_absolute");
  out.rotary = position == "rope" || meaning.is_on("@rope");
  if (position != "rope" && position != "learned_absolute") {
    meaning.refuse(fmt::format("{} {} is not supported", meaning.find("@position")->flag, position),
                   "use rope or learned_absolute");
  }
  if (meaning.is_on("@no_position") && !out.rotary) {
    meaning.refuse(fmt::format("{} without rotary positions is not supported",
                               meaning.find("@no_position")->flag),
                   "add --position-embedding-type rope");
  }
  out.rms = text::lower(meaning.text("@norm", "LayerNorm")) == "rmsnorm";
  out.gated = meaning.is_on("@swiglu") || meaning.is_on("@quick_geglu");
  out.bias = !meaning.is_on("@no_bias");
  out.untied = meaning.is_on("@untie");
  out.qk_norm = meaning.is_on("@qk_norm");
  if (meaning.is_on("@swiglu")) out.activation = "silu";
  if (meaning.is_on("@squared_relu")) out.activation = "relu2";
  if (meaning.is_on("@quick_geglu")) out.activation = "quick_gelu";
  if (meaning.is_on("@openai_gelu")) out.activation = "gelu_tanh";
  return out;
}

void set_gpt2(Meaning& meaning, const GptShape& shape) {
  set_word(meaning, "model.family", "gpt2", nullptr);
  set_word(meaning, "model.activation", shape.activation.c_str(), nullptr);
  set_on(meaning, "model.tie_embeddings", !shape.untied, meaning.find("@untie"));
  if (!shape.bias) set_on(meaning, "model.bias", false, meaning.find("@no_bias"));
  if (shape.gated) set_word(meaning, "model.feed_forward", "gated", meaning.find("@swiglu"));
  if (shape.qk_norm) set_on(meaning, "model.qk_norm", true, meaning.find("@qk_norm"));
  const Setting *const hidden = meaning.find("@hidden_dropout"), *const attention = meaning.find(
                                                                     "@attention_dropout");
  meaning.copy("model.embedding_dropout", hidden);
  meaning.copy("model.residual_dropout", hidden);
  meaning.copy("model.attention_dropout", attention);
  meaning.copy("model.layer_norm_eps", meaning.find("@norm_epsilon"));
}

// With norms of queries and keys it is Qwen 3, with latent attention DeepSeek V3.
void set_llama(Meaning& meaning, const GptShape& shape) {
  const bool latent = meaning.is_on("@latent");
  if (latent && !shape.qk_norm)
    meaning.refuse(fmt::format("{} without norms of the latent vectors is not supported",
                               meaning.find("@latent")->flag),
                   "add --qk-layernorm");
  set_word(meaning, "model.family", shape.qk_norm ? "qwen3" : "llama", meaning.find("@qk_norm"));
  set_on(meaning, "model.tie_embeddings", !shape.untied, meaning.find("@untie"));
  meaning.copy("model.rms_norm_eps", meaning.find("@norm_epsilon"));
  meaning.copy("model.rope_theta", meaning.find("@rope_base"));
  meaning.copy("model.attention_dropout", meaning.find("@attention_dropout"));
  if (latent) {
    megatron::set_latent_attention(meaning);
  } else {
    meaning.copy("model.head_dim", meaning.given("@head_dim"));
  }
  const Setting* const hidden = meaning.find("@hidden_dropout");
  if (hidden != nullptr && hidden->value.as_double() != 0) {
    meaning.refuse(
        fmt::format("{}: a model with RMSNorm, rotary positions and SwiGLU has no dropout "
                    "behind its layers",
                    hidden->flag),
        "--hidden-dropout 0");
  }
}

void set_composed(Meaning& meaning, const GptShape& shape) {
  set_word(meaning, "model.family", "compose", nullptr);
  set_word(meaning, "model.norm", shape.rms ? "rms" : "layer_norm", meaning.find("@norm"));
  set_word(meaning, "model.feed_forward", shape.gated ? "gated" : "dense", nullptr);
  set_word(meaning, "model.activation", shape.activation.c_str(), nullptr);
  set_on(meaning, "model.bias", shape.bias, meaning.find("@no_bias"));
  set_on(meaning, "model.tie_embeddings", !shape.untied, meaning.find("@untie"));
  meaning.copy("model.norm_eps", meaning.find("@norm_epsilon"));
  meaning.copy("model.head_dim", meaning.given("@head_dim"));
  const Setting *const hidden = meaning.find("@hidden_dropout"), *const attention = meaning.find(
                                                                     "@attention_dropout");
  if (meaning.text("@hidden_dropout") != meaning.text("@attention_dropout")) {
    meaning.refuse(fmt::format("{} and {} differ, and a composed model has one dropout",
                               hidden->flag,
                               attention->flag),
                   "give both the same value");
  }
  meaning.copy("model.dropout", hidden);
  if (shape.qk_norm) set_on(meaning, "model.qk_norm", true, meaning.find("@qk_norm"));
  if (!shape.rotary) return;
  set_word(meaning, "model.position", "rotary", meaning.find("@position"));
  meaning.set("model.embedding",
              json::Value::array({json::Value::string("word")}),
              meaning.find("@position"));
  meaning.copy("model.rope_theta", meaning.find("@rope_base"));
  if (meaning.number("@rope_share").value_or(1.0) != 1.0)
    meaning.copy("model.rotary_fraction", meaning.find("@rope_share"));
}

// True unless --kv-channels gives the heads another width than the hidden one divided by them.
bool has_usual_heads(const Meaning& meaning) {
  const auto width = meaning.number("@head_dim"), heads = meaning.number("model.num_heads"),
             hidden = meaning.number("model.hidden_size");
  return meaning.given("@head_dim") == nullptr || !width || !heads || !hidden ||
         *width * *heads == *hidden;
}

void set_decoder(Meaning& meaning) {
  const GptShape shape = gpt_shape_of(meaning);
  if (meaning.is_on("@qkv_bias"))
    meaning.refuse("--add-qkv-bias is not supported",
                   "begin from a model that has such biases: model.from");
  const bool whole = meaning.number("@rope_share").value_or(1.0) == 1.0;
  // Composed models turn neighbouring channels.
  const bool llama = shape.rotary && shape.rms && meaning.is_on("@swiglu") && !shape.bias &&
                     whole && !meaning.is_on("@interleaved");
  if (!llama && meaning.is_on("@latent")) {
    meaning.refuse(
        fmt::format("{}: latent attention is built for models with RMSNorm, rotary positions, "
                    "SwiGLU and no biases",
                    meaning.find("@latent")->flag),
        "--normalization RMSNorm --position-embedding-type rope --swiglu --disable-bias-linear");
  }
  const bool gpt2 = !shape.rotary && !shape.rms && has_usual_heads(meaning);
  if (llama) {
    set_llama(meaning, shape);
  } else if (gpt2) {
    set_gpt2(meaning, shape);
  } else {
    set_composed(meaning, shape);
  }
  // Megatron-LM computes the hidden width of a gated MLP like this.
  const json::Value* const width = meaning.value("model.ffn_hidden_size");
  const json::Value* const hidden = meaning.value("model.hidden_size");
  if (shape.gated && width == nullptr && hidden != nullptr) {
    const double all = 4.0 * hidden->as_double() * 2.0 / 3.0;
    meaning.set("model.ffn_hidden_size",
                json::Value::integer(static_cast<std::int64_t>(std::floor(all / 64.0)) * 64),
                meaning.find("@swiglu"));
  }
}

void set_heads(Meaning& meaning) {
  const Setting* const groups = meaning.given("@query_groups");
  const Setting* const grouped = meaning.given("@grouped");
  if (groups != nullptr &&
      (grouped != nullptr || meaning.program.find("DeepSpeed") != std::string::npos)) {
    meaning.copy("model.num_kv_heads", groups);
  } else if (grouped != nullptr) {
    meaning.set("model.num_kv_heads", json::Value::integer(1), grouped);
  }
}

// ---- length, schedule, optimizer, precision ----

double ranks_with_data(const Meaning& meaning) {
  const double shared = meaning.number("parallel.tensor.size").value_or(1) *
                        meaning.number("parallel.pipeline.size").value_or(1) *
                        meaning.number("parallel.context.size").value_or(1);
  return std::max(1.0, static_cast<double>(meaning.ranks.value_or(1)) / shared);
}

double global_batch(const Meaning& meaning) {
  if (const auto given = meaning.number("train_batch_size")) return *given;
  return meaning.number("train_micro_batch_size_per_gpu").value_or(1) * ranks_with_data(meaning);
}

// A run by samples decays over all of them, unless the command says otherwise.
void set_decay_of_samples(Meaning& meaning) {
  // A run by updates has a warm-up of no samples, which says nothing.
  const json::Value* const warmup = meaning.value("scheduler.params.lr_warmup_samples");
  if (meaning.value("trainer.max_steps") != nullptr && meaning.given("@train_samples") == nullptr &&
      warmup != nullptr && warmup->is_number() && warmup->as_double() == 0)
    meaning.drop("scheduler.params.lr_warmup_samples");
  const Setting* const samples = meaning.given("@train_samples");
  if (samples == nullptr) return;
  for (const char* key : {"lr_decay_samples", "lr_decay_iters", "lr_warmup_iters"}) {
    if (meaning.value(fmt::format("scheduler.params.{}", key)) != nullptr) return;
  }
  if (meaning.value("scheduler.params.lr_warmup_samples") != nullptr)
    meaning.copy("scheduler.lr_decay_samples", samples);
}

void set_length(Meaning& meaning) {
  const Setting* const samples = meaning.given("@train_samples");
  const Setting* const tokens = meaning.given("@train_tokens");
  if (meaning.value("train_batch_size") == nullptr) {
    meaning.set("train_batch_size",
                json::Value::integer(static_cast<std::int64_t>(global_batch(meaning))),
                meaning.find("train_micro_batch_size_per_gpu"));
  }
  const auto steps_of = [&](double count) {
    return static_cast<std::int64_t>(std::ceil(count / global_batch(meaning)));
  };
  if (meaning.value("trainer.max_steps") == nullptr && samples != nullptr) {
    meaning.set(
        "trainer.max_steps", json::Value::integer(steps_of(samples->value.as_double())), samples);
  }
  const double length = meaning.number("data.sequence_length").value_or(0);
  if (tokens != nullptr && length > 0 && meaning.value("rampup_batch_size") == nullptr) {
    const std::int64_t steps = steps_of(tokens->value.as_double() / length);
    const json::Value* const before = meaning.value("trainer.max_steps");
    if (before == nullptr || before->as_double() > static_cast<double>(steps))
      meaning.set("trainer.max_steps", json::Value::integer(steps), tokens);
  }
  if (const Setting* const exit = meaning.given("@exit_interval")) {
    const json::Value* const before = meaning.value("trainer.max_steps");
    // A run that ends earlier keeps the schedule of the whole length.
    if (before != nullptr && exit->value.as_double() < before->as_double()) {
      if (meaning.value("scheduler.params.lr_decay_iters") == nullptr &&
          meaning.value("scheduler.params.lr_decay_samples") == nullptr)
        meaning.set("scheduler.lr_decay_iters", *before, exit);
      meaning.copy("trainer.max_steps", exit);
    }
  }
  if (meaning.value("trainer.max_steps") == nullptr)
    meaning.refuse(fmt::format("{} without a length", meaning.program),
                   "add --train-iters or --train-samples");
}

// Tokens become samples, by the length of a sequence.
void set_token_schedule(Meaning& meaning) {
  const double length = meaning.number("data.sequence_length").value_or(0);
  const auto copy = [&](const char* name, const char* key) {
    const Setting* const tokens = meaning.given(name);
    if (tokens == nullptr || length <= 0) return;
    meaning.set(key,
                json::Value::integer(static_cast<std::int64_t>(tokens->value.as_double() / length)),
                tokens);
  };
  copy("@decay_tokens", "scheduler.lr_decay_samples");
  copy("@warmup_tokens", "scheduler.lr_warmup_samples");
}

void set_rampup(Meaning& meaning) {
  const Setting* const rampup = meaning.given("@rampup");
  if (rampup == nullptr) return;
  json::Value numbers = json::Value::array();
  for (const std::string& word : meaning.texts("@rampup"))
    numbers.push_back(json::parse(word, rampup->flag));
  meaning.set("rampup_batch_size", std::move(numbers), rampup);
}

void set_precision(Meaning& meaning) {
  const bool fp16 = meaning.is_on("@fp16"), bf16 = meaning.is_on("@bf16");
  if (fp16 && bf16) {
    meaning.refuse("--fp16 and --bf16 at once", "keep one of them");
    return;
  }
  if (bf16) set_on(meaning, "bf16.enabled", true, meaning.find("@bf16"));
  if (bf16 && meaning.is_on("@reduce_bf16"))
    set_word(meaning, "communication_data_type", "bf16", meaning.find("@reduce_bf16"));
  if (!fp16) return;
  const Setting* const half = meaning.find("@fp16");
  // Megatron-DeepSpeed leaves the scale of losses to DeepSpeed, whose file then says how it grows.
  const bool of_deepspeed = meaning.value("fp16") != nullptr;
  set_on(meaning, "fp16.enabled", true, half);
  if (of_deepspeed) return;
  set_word(meaning, "fp16.scaler", "megatron", half);
  meaning.copy("fp16.loss_scale", meaning.given("@loss_scale"));
  if (meaning.given("@loss_scale") != nullptr) return;
  meaning.copy("fp16.initial_scale", meaning.find("@initial_scale"));
  meaning.copy("fp16.min_scale", meaning.find("@min_scale"));
  meaning.copy("fp16.growth_interval", meaning.find("@scale_window"));
  meaning.copy("fp16.hysteresis", meaning.find("@hysteresis"));
}

// ---- layout ----

// Ranks that share a layer of experts hold whole tokens here: there the switch, which saves memory
// and changes no result, has no effect.
void set_sequence_parallel(Meaning& meaning) {
  if (!meaning.is_on("@sequence_parallel")) return;
  const Setting* const from = meaning.find("@sequence_parallel");
  if (meaning.given("@experts") == nullptr) {
    meaning.copy("parallel.sequence", from);
  } else {
    meaning.note(fmt::format(
        "{} has no effect beside experts: every rank of parallel.tensor holds whole tokens, which "
        "gives the same result and needs more memory",
        from->flag));
  }
}

void set_layout(Meaning& meaning) {
  set_sequence_parallel(meaning);
  megatron::set_pipeline_layout(meaning);
  if (meaning.is_on("@selective"))
    set_word(
        meaning, "activation_checkpointing.granularity", "selective", meaning.find("@selective"));
  if (meaning.is_on("@fsdp") || meaning.is_on("@fsdp2")) {
    const std::string strategy = meaning.text("@sharding", "optim_grads_params");
    const std::int64_t stage = strategy == "no_shard"      ? 0
                               : strategy == "optim"       ? 1
                               : strategy == "optim_grads" ? 2
                                                           : 3;
    const Setting* const from =
        meaning.given("@fsdp") != nullptr ? meaning.given("@fsdp") : meaning.given("@fsdp2");
    meaning.set("zero_optimization.stage", json::Value::integer(stage), from);
  }
  if (const Setting* const stage = meaning.given("@zero_stage"))
    meaning.set("zero_optimization.stage",
                json::Value::integer(static_cast<std::int64_t>(stage->value.as_double())),
                stage);
  if (const Setting* const size = meaning.given("@ulysses");
      size != nullptr && size->value.as_double() > 1) {
    meaning.copy("parallel.context.size", size);
    set_word(meaning, "parallel.context.mode", "ulysses", size);
  }
  if (meaning.is_on("@zbh1"))
    set_word(meaning, "parallel.pipeline.schedule", "zb-h1", meaning.find("@zbh1"));
}

void set_evaluation(Meaning& meaning) {
  const Setting* const every = meaning.find("@eval_interval");
  const json::Value* const share = meaning.value("data.validation_fraction");
  const bool held_out =
      meaning.value("data.validation") != nullptr || (share != nullptr && share->as_double() > 0);
  const double batches = meaning.number("eval.batches").value_or(100);
  if (every != nullptr && held_out && batches > 0) {
    meaning.copy("eval.every", every);
  } else {
    meaning.drop("eval");
    if (!held_out) meaning.drop("data.validation_fraction");
  }
  if (meaning.value("checkpoint.every") == nullptr)
    meaning.set("checkpoint.every", json::Value::integer(0), nullptr);
  if (meaning.value("run.dir") == nullptr)
    meaning.set("checkpoint.final", json::Value::boolean(false), nullptr);
}

void set_start(Meaning& meaning) {
  const Setting* const load = meaning.given("@load");
  const Setting* const pretrained = meaning.given("@pretrained");
  std::error_code ignored;
  const auto exists = [&](const Setting* folder) {
    return folder != nullptr && std::filesystem::exists(folder->value.as_string(), ignored);
  };
  if (!exists(load) && exists(pretrained)) {
    meaning.copy("model.from", pretrained);
  } else if (exists(load) && (meaning.is_on("@finetune") || meaning.is_on("@no_load_optim"))) {
    meaning.copy("model.from", load);
  } else if (exists(load) && load->value.as_string() != meaning.text("run.dir")) {
    meaning.own_words.insert(meaning.own_words.end(), {"--resume", load->value.as_string()});
  }
  if (meaning.is_on("@skip_train"))
    meaning.refuse("--skip-train trains nothing", "evaluate a run with: tessera eval RUN");
}

void finish(Meaning& meaning) {
  if (const Setting* const type = meaning.given("@rope_type"); type != nullptr) {
    const std::string name = meaning.text("@rope_type");
    if (name != "rope" && (name != "yarn" || !meaning.is_on("@latent")))
      meaning.refuse(fmt::format("{} {} is not supported", type->flag, name),
                     "use --rotary-base and --rotary-percent, or a model with model.from");
  }
  if (const Setting* const spec = meaning.given("@spec");
      spec != nullptr && meaning.texts("@spec") != std::vector<std::string>{"local"}) {
    meaning.refuse(fmt::format("{}: modules of Python are not imported", spec->flag),
                   "remove it, or use --spec local");
  }
  set_heads(meaning);
  megatron::set_tokens(meaning);
  megatron::set_data(meaning);
  set_rampup(meaning);
  megatron::set_batch_steps(meaning);
  set_length(meaning);
  set_token_schedule(meaning);
  set_decay_of_samples(meaning);
  megatron::set_optimizer(meaning);
  set_precision(meaning);
  set_layout(meaning);
  set_evaluation(meaning);
  set_start(meaning);
}

void gpt(Meaning& meaning) {
  set_decoder(meaning);
  megatron::set_experts(meaning);
  finish(meaning);
  if (meaning.is_on("@sft"))
    meaning.refuse("--sft is not supported", "use the task sft: tessera init --task sft");
}

void bert(Meaning& meaning) {
  set_word(meaning, "model.family", "megatron-bert", nullptr);
  meaning.copy("model.dropout", meaning.find("@hidden_dropout"));
  meaning.copy("model.attention_dropout", meaning.find("@attention_dropout"));
  meaning.copy("task.params.probability", meaning.find("@mask_prob"));
  if (!meaning.is_on("@no_pairs")) {
    set_word(meaning, "task.params.pairs", "sop", meaning.find("@no_pairs"));
    meaning.copy("task.params.short_pairs", meaning.find("@short_pairs"));
  }
  finish(meaning);
}

// An encoder and a decoder with layer norms in front and learned positions, which the two share.
void t5(Meaning& meaning) {
  set_composed(meaning, gpt_shape_of(meaning));
  set_word(meaning, "model.mask", "fully_visible", nullptr);
  set_word(meaning, "model.decoder", "transformer", nullptr);
  set_on(meaning, "model.embedding_norm", false, nullptr);
  set_on(meaning, "model.shared_positions", true, nullptr);
  set_on(meaning, "model.lm_bias", !meaning.is_on("@untie"), meaning.find("@untie"));
  meaning.copy("model.num_decoder_layers", meaning.given("@decoder_layers"));
  meaning.copy("task.params.noise_density", meaning.find("@mask_prob"));
  meaning.copy("task.params.short_texts", meaning.find("@short_pairs"));
  if (const Setting* const length = meaning.given("@decoder_length")) {
    meaning.copy("task.params.target_length", length);
  } else {
    meaning.refuse(fmt::format("{} without a length of answers", meaning.program),
                   "add --decoder-seq-length 128");
  }
  finish(meaning);
}

constexpr std::string_view kPretrain = R"({"data": {"shuffle": true}})";

const bool kPrograms = add_programs({
    {.title = "Megatron-DeepSpeed's pretrain_gpt.py",
     .names = {"pretrain_gpt.py"},
     .folders = {"Megatron-DeepSpeed"},
     .marks = {"deepspeed",
               "deepspeed_config",
               "zero_stage",
               "train_tokens",
               "data_impl",
               "no_pipeline_parallel",
               "ds_inference"},
     .tables = {"megatron/deepspeed", "megatron/lm"},
     .always = kPretrain,
     .rules = gpt},
    {.title = "Megatron-LM's pretrain_gpt.py",
     .names = {"pretrain_gpt.py", "pretrain_llama.py"},
     .tables = {"megatron/lm", "megatron/inference"},
     .always = kPretrain,
     .rules = gpt},
    {.title = "Megatron-DeepSpeed's pretrain_bert.py",
     .names = {"pretrain_bert.py"},
     .folders = {"Megatron-DeepSpeed"},
     .marks = {"deepspeed", "deepspeed_config", "zero_stage", "data_impl"},
     .tables = {"megatron/deepspeed", "megatron/lm"},
     .always = R"({"task": {"type": "masked_lm"}})",
     .rules = bert},
    {.title = "Megatron-LM's pretrain_bert.py",
     .names = {"pretrain_bert.py"},
     .tables = {"megatron/lm"},
     .always = R"({"task": {"type": "masked_lm"}})",
     .rules = bert},
    {.title = "Megatron-DeepSpeed's pretrain_t5.py",
     .names = {"pretrain_t5.py"},
     .folders = {"Megatron-DeepSpeed"},
     .marks = {"deepspeed", "deepspeed_config", "zero_stage", "data_impl"},
     .tables = {"megatron/deepspeed", "megatron/lm"},
     .always = R"({"task": {"type": "word_span_corruption"}})",
     .rules = t5},
    {.title = "Megatron-LM's pretrain_t5.py",
     .names = {"pretrain_t5.py"},
     .tables = {"megatron/lm"},
     .always = R"({"task": {"type": "word_span_corruption"}})",
     .rules = t5},
    {.title = "Megatron-LM's pretrain_mamba.py",
     .names = {"pretrain_mamba.py", "pretrain_hybrid.py"},
     .tables = {"megatron/lm"},
     .refused = "there are no state-space models",
     .instead = "use pretrain_gpt.py"},
    {.title = "Megatron-LM's pretrain_vlm.py",
     .names = {"pretrain_vlm.py",
               "pretrain_vision_classify.py",
               "pretrain_vision_dino.py",
               "pretrain_vision_inpaint.py"},
     .tables = {"megatron/lm"},
     .refused = "there are no models of this kind",
     .instead = "use the task image_classify"},
    {.title = "Megatron-LM's inference",
     .names = {"gpt_static_inference.py",
               "gpt_dynamic_inference.py",
               "gpt_dynamic_inference_with_coordinator.py",
               "run_text_generation_server.py",
               "run_mcore_text_generation_server.py"},
     .tables = {"megatron/inference", "megatron/lm"},
     .refused = "it trains nothing",
     .instead = "tessera generate MODEL --prompt TEXT, or --prompts IN.jsonl --out OUT.jsonl"},
    {.title = "Megatron-LM's retrievers",
     .names = {"pretrain_ict.py", "pretrain_retro.py", "train_rl.py"},
     .tables = {"megatron/lm"},
     .refused = "there is no such training",
     .instead = "use pretrain_gpt.py, or the task rl"},
});

}  // namespace
}  // namespace tessera::interop
