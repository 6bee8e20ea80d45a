// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/init_task.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

// The values and comments of `init --task` that depend on the task.
struct TaskAdvice {
  std::string_view name;
  std::string_view model;    // the kind of model
  std::string_view data;     // example file name
  std::string_view record;   // its content
  std::string_view options;  // lines of the task's own section; empty: none
  int sequence_length;       // 0: samples are not text
  std::string_view lr, best;
  std::string_view use;  // a command for the trained model
};
constexpr std::string_view kPredict = "tessera predict RUN new.jsonl --out said.jsonl";
constexpr std::string_view kChat = "tessera chat RUN";
constexpr std::string_view kClasses =
    "    \"class_balance\": \"none\",  // inverse or class_balanced: weigh rare classes more\n"
    "    \"label_smoothing\": 0.0,\n";
constexpr std::string_view kClassesOfTexts =
    "    \"class_balance\": \"none\",  // inverse or class_balanced: weigh rare classes more\n"
    "    \"label_smoothing\": 0.0,\n"
    "    // \"multi_label\": true,  // a list of labels in each record\n"
    "    // \"heads\": {\"topic\": [\"sport\", \"arts\"], \"mood\": [\"good\", \"bad\"]},  // or a "
    "label in each of several fields\n";

constexpr std::array<TaskAdvice, 13> kTasks = {{
    {"classify",
     "an encoder or a decoder",
     "train.jsonl",
     R"({"text": "...", "label": "..."} a line; also csv, tsv, folders of GLUE)",
     kClassesOfTexts,
     128,
     "2e-5",
     "accuracy",
     kPredict},
    {"regression",
     "an encoder or a decoder",
     "train.jsonl",
     R"({"text": "...", "label": 0.5} a line; also csv, tsv)",
     "    \"numbers\": 1,  // of a record\n",
     128,
     "2e-5",
     "spearman",
     kPredict},
    {"tag",
     "an encoder",
     "train.jsonl",
     R"({"tokens": ["A", "word"], "tags": ["DT", "NN"]} a line)",
     kClasses,
     128,
     "3e-5",
     "f1",
     kPredict},
    {"image_classify",
     "a model of images",
     "pictures",
     "a folder for each class, or {\"image\": \"a.jpg\", \"label\": \"...\"} a line",
     "    // \"preprocessor\": \"default\",  // instead of the model folder's "
     "preprocessor_config.json\n",
     0,
     "5e-5",
     "accuracy",
     kPredict},
    {"seq2seq",
     "an encoder with a decoder",
     "train.jsonl",
     R"({"source": "...", "target": "..."} a line)",
     "    \"prefix\": \"\",  // before every source: \"summarize: \"\n"
     "    \"target_length\": 128,  // tokens\n",
     512,
     "1e-4",
     "loss",
     "tessera generate RUN --prompt \"...\" --beams 4"},
    {"sft",
     "a decoder",
     "chat.jsonl",
     R"({"messages": [{"role": "user", "content": "..."}, ...]} a line, or prompt and completion)",
     "    \"loss_on\": \"auto\",  // which tokens are learned: assistant, completion or all\n"
     "    // \"chat_template\": \"chatml\",  // of a model whose folder has none\n",
     1024,
     "2e-5",
     "loss",
     kChat},
    {"prefer",
     "a decoder",
     "pairs.jsonl",
     R"({"prompt": "...", "chosen": "...", "rejected": "..."} a line)",
     "    \"method\": \"dpo\",  // or kto, orpo, cpo, simpo\n",
     1024,
     "1e-6",
     "loss",
     kChat},
    {"reward",
     "a decoder",
     "pairs.jsonl",
     R"({"prompt": "...", "chosen": "...", "rejected": "..."} a line)",
     "    \"centering\": 0.01,  // keeps rewards near 0\n",
     1024,
     "1e-5",
     "accuracy",
     kPredict},
    {"rl",
     "a decoder",
     "prompts.jsonl",
     R"({"prompt": "...", "answer": "..."} a line; prompts may be messages)",
     "    \"algorithm\": \"grpo\",  // or rloo, ppo, reinforce++\n"
     "    \"samples\": 8,  // completions of a prompt\n"
     "    \"max_new_tokens\": 256,\n"
     "    \"rewards\": [{\"type\": \"exact_match\"}],  // of the answer; also number, regex, "
     "length, ...\n",
     1024,
     "1e-6",
     "loss",
     kChat},
    {"masked_lm",
     "an encoder",
     "my.txt",
     "a .txt, a .jsonl, a folder of them, a list, or a .bin/.idx pair",
     "    \"probability\": 0.15,  // that a token is hidden\n"
     "    \"whole_words\": false,\n"
     "    \"pairs\": \"none\",  // nsp or sop: also learn pairs of sentences, one per line\n",
     512,
     "5e-5",
     "loss",
     "tessera convert RUN folder"},
    {"prefix_lm",
     "a decoder",
     "my.txt",
     "a .txt, a .jsonl, a folder of them, a list, or a .bin/.idx pair",
     "    \"max_prefix\": 1.0,  // the longest prefix, as a share of a sample\n",
     1024,
     "3e-4",
     "loss",
     "tessera generate RUN"},
    {"span_corruption",
     "an encoder with a decoder",
     "my.txt",
     "a .txt, a .jsonl, a folder of them, a list, or a .bin/.idx pair",
     "    \"noise_density\": 0.15,  // share of the tokens that is left out\n",
     512,
     "1e-3",
     "loss",
     "tessera convert RUN folder"},
    {"word_span_corruption",
     "an encoder with a decoder",
     "my.txt",
     "a .txt with a sentence a line and a blank line after each document, a .jsonl, or a .bin/.idx "
     "pair with a sequence a sentence",
     "    \"noise_density\": 0.15,  // share of the tokens that is left out\n"
     "    \"most_words\": 10,  // of a span\n",
     512,
     "1e-3",
     "loss",
     "tessera convert RUN folder"},
}};

std::string json_text(std::string_view text) {
  return json::Value::string(std::string(text)).dump();
}

}  // namespace

std::vector<std::string> tasks_with_configuration() {
  std::vector<std::string> out;
  for (const TaskAdvice& task : kTasks)
    out.emplace_back(task.name);
  return out;
}

namespace {

const TaskAdvice& advice_of(const std::string& task) {
  const auto found = std::ranges::find(kTasks, task, &TaskAdvice::name);
  TESSERA_REQUIRE(found != kTasks.end(),
                  Config,
                  fmt::format("no configuration for the task \"{}\"", task),
                  text::suggestion(task, tasks_with_configuration()));
  return *found;
}

/// `model`: the lines of the model and its tokenizer.
std::string page_of(const TaskAdvice& advice, const std::string& model, const std::string& data) {
  std::string out = "{\n";
  const auto add = [&](const std::string& text) { out += text; };
  add("  // Train:                       tessera train THIS_FILE -n 2\n");
  if (advice.sequence_length > 0) add("  // See what the model learns:   tessera data THIS_FILE\n");
  add(fmt::format("  // Use it:                      {}\n", advice.use));
  add(model);
  add(fmt::format("  \"task\": {},\n", json_text(advice.name)));
  if (!advice.options.empty())
    add(fmt::format("  {}: {{\n{}  }},\n", json_text(advice.name), advice.options));
  add("  // \"adapter\": {\"type\": \"lora\", \"r\": 8, \"alpha\": 16},  // train small matrices; "
      "then use ten times the lr\n");
  add("  // \"adapter\": {\"type\": \"lora\", \"r\": 8, \"alpha\": 16, \"quantize_base\": "
      "\"nf4\"},  // the "
      "same on a base in four bits (QLoRA)\n");
  add("  \"data\": {\n");
  add(fmt::format("    \"train\": {},  // {}\n",
                  json_text(data.empty() ? advice.data : std::string_view(data)),
                  advice.record));
  add("    \"validation_fraction\": 0.1,  // the tail of the data; or \"validation\": separate "
      "file\n");
  if (advice.sequence_length > 0)
    add(fmt::format("    \"sequence_length\": {},  // tokens\n", advice.sequence_length));
  add("  },\n");
  add("  \"train_batch_size\": 16,\n");
  add("  \"gradient_accumulation_steps\": 4,  // a larger value needs less memory and gives the "
      "same result\n");
  add(fmt::format(
      "  \"optimizer\": {{\"type\": \"AdamW\", \"params\": {{\"lr\": {}, \"weight_decay\": "
      "0.01}}}},\n",
      advice.lr));
  add("  \"scheduler\": {\"type\": \"WarmupCosine\", \"params\": {\"warmup_num_steps\": 10}},\n");
  add("  \"gradient_clipping\": 1.0,\n");
  add("  \"bf16\": {\"enabled\": true},  // half the memory of weights and activations\n");
  add("  \"trainer\": {\"epochs\": 3},\n");
  add(
      fmt::format("  \"eval\": {{\"every\": \"epoch\", \"best\": {}, \"patience\": 2}},  // ends "
                  "after two evaluations without a gain\n",
                  json_text(advice.best)));
  add("}\n");
  return out;
}

}  // namespace

std::string task_configuration(const std::string& task,
                               const std::string& from,
                               const std::string& data) {
  const TaskAdvice& advice = advice_of(task);
  return page_of(
      advice,
      fmt::format("  \"model\": {{\"from\": {}}},  // {}: a Hugging Face folder, or a run\n",
                  json_text(from),
                  advice.model),
      data);
}

std::string task_configuration_of_preset(const std::string& task,
                                         const std::string& family,
                                         const std::string& preset,
                                         const std::string& data) {
  const TaskAdvice& advice = advice_of(task);
  std::string model = fmt::format(
      "  \"model\": {{\"family\": {}, \"preset\": {}}},  // new weights; {{\"from\": FOLDER}} "
      "has trained ones\n",
      json_text(family),
      json_text(preset));
  if (advice.sequence_length > 0) {
    model += fmt::format(
        "  // Before:                      tessera tokenizer train TEXT --type {} --vocab-size "
        "30000 --out my-tokenizer\n"
        "  \"tokenizer\": {{\"type\": \"file\", \"vocab\": \"my-tokenizer/tokenizer.json\"}},\n",
        task == "masked_lm" ? "wordpiece" : "unigram");
  }
  return page_of(advice, model, data);
}

}  // namespace tessera::cli
