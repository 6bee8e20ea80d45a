// SPDX-License-Identifier: Apache-2.0
// tessera init: writes a commented configuration to start from.
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/flags_alone.h"
#include "tessera/cli/init_task.h"
#include "tessera/config/json.h"
#include "tessera/models/family.h"
#include "tessera/models/presets.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {
namespace {

// Recommended values for a preset: batch sizes and learning rate.
struct Advice {
  std::string_view preset;
  int sequence_length, global_batch, accumulation, max_steps, warmup;
  std::string_view lr, min_lr, tokenizer, bf16;
};
constexpr std::string_view kLargeTokenizer = "gpt2";
constexpr std::array<Advice, 3> kAdvice = {{
    {"nano", 64, 12, 1, 1500, 100, "1e-3", "1e-4", "byte", "false"},
    {"mini", 256, 16, 2, 5000, 200, "1e-3", "1e-4", "byte", "false"},
    {"", 512, 32, 8, 20000, 500, "3e-4", "3e-5", kLargeTokenizer, "true"},
}};

/// A family's own smallest presets are named after the first ones: "llama-nano".
const Advice& advice_for(const std::string& preset) {
  const std::string_view size = std::string_view(preset).substr(preset.rfind('-') + 1);
  for (const Advice& advice : kAdvice) {
    if (advice.preset == size) return advice;
  }
  return kAdvice.back();
}

std::string quoted(const std::string& text) {
  return json::Value::string(text).dump();
}

std::string batch_lines(const Advice& advice) {
  const std::string more = "a larger value needs less memory and gives the same result";
  return fmt::format("  \"train_batch_size\": {},  // global batch size in sequences\n",
                     advice.global_batch) +
         fmt::format("  \"gradient_accumulation_steps\": {},  // {}\n", advice.accumulation, more);
}

std::string template_for(const std::string& family,
                         const std::string& preset,
                         const std::string& data) {
  const Advice& advice = advice_for(preset);
  std::string out = "{\n";
  const auto add = [&](const std::string& text) { out += text; };
  add("  // Train:              tessera train THIS_FILE -n 2\n");
  add("  // Check only:         tessera train THIS_FILE --dry-run\n");
  add("  // All keys:           tessera config explain\n");
  add("  \"model\": {\n");
  if (family != models::default_family()) add(fmt::format("    \"family\": {},\n", quoted(family)));
  add(fmt::format("    \"preset\": {},  // or num_layers, hidden_size, num_heads\n",
                  quoted(preset)));
  if (models::ModelOptions(family).has("dropout")) add("    \"dropout\": 0.0,\n");
  add("  },\n");
  add(fmt::format("  \"tokenizer\": {{\"type\": {}}},  // byte or gpt2\n",
                  quoted(std::string(advice.tokenizer))));
  add("  \"data\": {\n");
  add(fmt::format(
      "    \"train\": {},  // a .txt, a .jsonl, a folder of them, a list, or a .bin/.idx pair\n",
      quoted(data)));
  add("    \"validation_fraction\": 0.1,  // the tail of the data; or \"validation\": separate "
      "file\n");
  add(fmt::format("    \"sequence_length\": {},  // tokens\n", advice.sequence_length));
  add("  },\n");
  add(batch_lines(advice));
  add(fmt::format(
      "  \"optimizer\": {{\"type\": \"AdamW\", \"params\": {{\"lr\": {}, \"betas\": [0.9, 0.99], "
      "\"weight_decay\": 0.1}}}},\n",
      advice.lr));
  add(
      fmt::format("  \"scheduler\": {{\"type\": \"WarmupCosine\", \"params\": "
                  "{{\"warmup_num_steps\": {}, \"min_lr\": {}}}}},\n",
                  advice.warmup,
                  advice.min_lr));
  add("  \"gradient_clipping\": 1.0,\n");
  add(fmt::format(
      "  \"bf16\": {{\"enabled\": {}}},  // half the memory of weights and activations\n",
      advice.bf16));
  add(fmt::format("  \"trainer\": {{\"max_steps\": {}, \"seed\": 1234}},\n", advice.max_steps));
  add("  \"eval\": {\"every\": 250, \"prompt\": \"The \"},  // loss on the validation data, and a "
      "sample\n");
  add("  \"checkpoint\": {\"keep\": 3},  // every 15 minutes and at the end\n");
  add("}\n");
  return out;
}

std::string shipped_text() {
  std::error_code ignored;
  const std::filesystem::path text = "examples/data/shakespeare.txt";
  return std::filesystem::exists(text, ignored) ? text.string() : "my.txt";
}

/// The family that has the preset. Throws Error{Config} with the nearest name if none has.
std::string family_of(const std::string& preset) {
  const std::optional<std::string> family = models::family_of_preset(preset);
  TESSERA_REQUIRE(family.has_value(),
                  Config,
                  fmt::format("unknown preset \"{}\"", preset),
                  text::suggestion(preset, models::all_presets()));
  return *family;
}

}  // namespace

std::string configuration_for(const std::string& preset, const std::string& data) {
  return template_for(family_of(preset), preset, data.empty() ? shipped_text() : data);
}

namespace {

int init(const std::vector<std::string>& line) {
  std::string preset, named, data, task, from;
  Arguments arguments("init",
                      "Writes a commented configuration to standard output.",
                      {"tessera init > my.json",
                       "tessera init mini --data notes/ > notes.json",
                       "tessera init bert-base-uncased --data notes/ > bert.json",
                       "tessera init --task sft --from ./smollm2 --data chat.jsonl > chat.json"});
  arguments.positional("PRESET",
                       &preset,
                       "Model with new weights, by its published name [nano]",
                       /*required=*/false);
  arguments.option("--preset", &named, "The same as PRESET");
  arguments.option("--data", &data, "Training data");
  arguments.option("--task",
                   &task,
                   fmt::format("What the model learns: {} [pretrain, or what the preset is for]",
                               text::join(tasks_with_configuration(), ", ")));
  arguments.option(
      "--from", &from, "Model that --task fine-tunes, in place of a preset [model-folder]");
  Common common;  // no other output
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  TESSERA_REQUIRE(preset.empty() || named.empty() || preset == named,
                  Config,
                  fmt::format("tessera init: PRESET is {}, and --preset is {}", preset, named),
                  "name one of them");
  if (preset.empty()) preset = named;
  TESSERA_REQUIRE(preset.empty() || from.empty(),
                  Config,
                  "tessera init: a preset and --from are both given",
                  "a preset has new weights; remove it to begin with the model of --from");
  const std::string family = preset.empty() ? "" : family_of(preset);
  if (task.empty() && !family.empty())
    task = tasks::task_of_objective(models::families().get(family).objective).trains;
  if (task.empty() || task == "pretrain") {
    std::fputs(configuration_for(preset.empty() ? "nano" : preset, data).c_str(), stdout);
    return kExitOk;
  }
  const std::string page =
      preset.empty() ? task_configuration(task, from.empty() ? "model-folder" : from, data)
                     : task_configuration_of_preset(task, family, preset, data);
  std::fputs(page.c_str(), stdout);
  return kExitOk;
}

TESSERA_COMMAND("init", "write a commented configuration", init);

}  // namespace
}  // namespace tessera::cli
