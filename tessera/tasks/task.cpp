// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/task.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/mixture.h"
#include "tessera/tasks/labelled_images.h"

namespace tessera::tasks {

void TaskOptions::describe(config::Fields& fields) {
  fields.field(
      "type",
      type,
      {.text =
           "What the model learns: pretrain the next token of a text; prefix_lm the tokens after "
           "a prefix that sees itself in both directions; masked_lm the masked tokens of a text; "
           "span_corruption the spans removed from a text; sft to answer "
           "(supervised fine-tuning); prefer to prefer one answer to another; reward to score "
           "answers; rl to earn rewards with its own answers; classify the label of a text; "
           "regression a number for a text; seq2seq a text from another text; tag the label of "
           "each word; image_classify the class of an image. The options of a task may be "
           "given under its name: \"classify\": {\"label_field\": \"mood\"}.",
       .choices = tasks().names()});
  fields.field(
      "params",
      params,
      {.text =
           "Its parameters; of sft: loss_on, packing, truncation, chat_template, "
           "drop_system, token_weights, token_weight_params, neftune_alpha; of "
           "prefer: method, reference_free, loss, chat_template; of reward: centering, margin, "
           "chat_template; of rl: algorithm, preset, samples, max_new_tokens, temperature, "
           "top_k, top_p, dynamic_rounds, entropy_coefficient, "
           "iterations, mini_batches, prompts_at_once, completions_at_once, cache, "
           "overlap, fuse_adapter, rollout_ranks, rollout_tensor, rewards, advantage, loss, kl, "
           "critic, ptx, validation, models, reference, truncated, parity, parity_limit, on_alarm, "
           "roll_back, chat_template; of classify: "
           "text_field, text_pair_field, label_field, history_field, history, history_turns, "
           "labels, multi_label, thresholds, heads, head_weights, balance; of regression: "
           "text_field, text_pair_field, label_field, history_field, history, history_turns, "
           "numbers; of tag: tokens_field, tags_field, "
           "labels; of image_classify: image_field, label_field, labels, preprocessor; of these "
           "and classify: class_balance, beta, class_weights, focal_gamma, label_smoothing; of "
           "masked_lm: probability, mask_share, random_share, mask_token, mask_token_id, "
           "whole_words, "
           "dynamic, seed, pairs, short_pairs, pair_copies, cls_token_id, sep_token_id; of "
           "span_corruption: noise_density, mean_span_length, sentinel_id, "
           "dynamic, seed; of prefix_lm: records, chat_template, min_prefix, max_prefix, dynamic, "
           "seed; of seq2seq: source_field, target_field, prefix, target_length.",
       .default_text = "none"});
}

namespace {

/// Makes file paths in parameters absolute, so that a run finds them when it is resumed from
/// another folder.
void make_paths_absolute(json::Value& params) {
  for (const char* key : {"chat_template", "preprocessor"}) {
    json::Value* const path = params.is_object() ? params.find(key) : nullptr;
    std::error_code ignored;
    if (path == nullptr || !path->is_string() ||
        !std::filesystem::exists(path->as_string(), ignored))
      continue;
    const json::Place place = path->place;
    *path = json::Value::string(std::filesystem::absolute(path->as_string()).string());
    path->place = place;
  }
}

/// Writes "task": {"type": ..., "params": {...}}.
void write_long_form(json::Value& source) {
  json::Value* const task = source.find("task");
  if (task == nullptr) return;
  if (task->is_string()) {
    const json::Place place = task->place;
    json::Value type = std::move(*task);
    *task = json::Value::object();
    (*task)["type"] = std::move(type);
    task->place = place;
  }
  const json::Value* const type = task->is_object() ? task->find("type") : nullptr;
  if (type == nullptr || !type->is_string()) return;
  if (json::Value* const given = task->find("params")) {
    make_paths_absolute(*given);
    return;
  }
  const auto named =
      std::ranges::find(source.members(), type->as_string(), &json::Value::Member::first);
  if (named == source.members().end() || !tasks().has(named->first)) return;
  json::Value params = std::move(named->second);
  make_paths_absolute(params);
  source.members().erase(named);  // moves `task`
  (*source.find("task"))["params"] = std::move(params);
}

/// Writes the preprocessing of a model's folder into the configuration, so that a run keeps it when
/// it is evaluated without that folder's model.
void spell_out_preprocessor(json::Value& source) {
  const std::optional<std::string> name = preprocessing_name_of(source);
  const json::Value* const model = source.find("model");
  const json::Value* const from =
      model != nullptr && model->is_object() ? model->find("from") : nullptr;
  if (name != "default" || from == nullptr || !from->is_string()) return;
  const std::filesystem::path file = std::filesystem::path(from->as_string()) / kPreprocessorFile;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return;
  json::Value& params = (*source.find("task"))["params"];
  const bool given =
      params.is_object() ? params.find("preprocessor") != nullptr : !params.is_null();
  if (given) return;
  params["preprocessor"] = json::Value::string(std::filesystem::absolute(file, ignored).string());
}

/// Writes DeepSpeed's number of ranks that share layers in generation as an option of the task rl.
void spell_out_rollout_tensor(json::Value& source) {
  const auto object = [](json::Value* value) {
    return value != nullptr && value->is_object() ? value : nullptr;
  };
  json::Value* const task = object(source.find("task"));
  const json::Value* const engine = object(source.find("hybrid_engine"));
  if (task == nullptr || engine == nullptr) return;
  json::Value* const params = object(task->find("params"));
  const json::Value* const type = task->find("type");
  const json::Value* const enabled = engine->find("enabled");
  const json::Value* const sharers = engine->find("inference_tp_size");
  const bool meant = type != nullptr && type->is_string() && type->as_string() == "rl" &&
                     enabled != nullptr && enabled->is_bool() && enabled->as_bool();
  if (meant && params != nullptr && sharers != nullptr && params->find("rollout_tensor") == nullptr)
    (*params)["rollout_tensor"] = *sharers;
}

}  // namespace

void spell_out_task(json::Value& source) {
  if (!source.is_object()) return;
  write_long_form(source);
  spell_out_rollout_tensor(source);
  spell_out_preprocessor(source);
}

std::unique_ptr<data::Dataset> Task::open_to_predict(
    const DataRequest& /*request*/, const std::vector<std::string>& /*names*/) const {
  throw Error(Error::Kind::Unsupported,
              fmt::format("models of the objective {} make text", objective()),
              "use `tessera generate MODEL --prompts FILE.jsonl --out FILE.jsonl`");
}

Registry<TaskFactory>& tasks() {
  static Registry<TaskFactory> registry("task");
  return registry;
}

Registry<AdoptClasses>& tasks_of_classes() {
  static Registry<AdoptClasses> registry("task");
  return registry;
}

Registry<ObjectiveTask>& tasks_of_objectives() {
  static Registry<ObjectiveTask> registry("objective");
  return registry;
}

ObjectiveTask task_of_objective(const std::string& objective) {
  return tasks_of_objectives().has(objective) ? tasks_of_objectives().get(objective)
                                              : ObjectiveTask{};
}

std::unique_ptr<Task> make_task(const TaskOptions& options, config::Problems& problems) {
  const TaskFactory factory = tasks().get(options.type);
  if (!options.params.is_null() && !options.params.is_object()) {
    problems.add(options.params.place,
                 "task.params",
                 "expected an object, found " + std::string(options.params.type_name()),
                 "write {\"key\": value, ...}");
    return nullptr;
  }
  config::Problems own;
  config::Origins origins;
  auto task =
      factory(options.params.is_null() ? json::Value::object() : options.params, own, origins);
  problems.adopt(own, "task.params");
  return task;
}

void check_data(const Task& task,
                const TaskOptions& options,
                const data::DataOptions& data,
                config::Problems& problems,
                const config::Origins& origins) {
  const auto refuse = [&](const char* key, const std::string& what, std::string fix) {
    problems.add(origins.place(key), key, what, std::move(fix));
  };
  const std::string of_task = "the task " + options.type;
  if (!task.reads_records()) {
    if (!data.map.is_null())
      refuse("data.map",
             of_task + " reads texts, not records",
             "remove it; data.text_field names the field of a text");
    if (data.on_bad_record != "stop")
      refuse("data.on_bad_record", of_task + " reads texts, not records", "remove it");
  }
  if (data.drop_duplicates) {
    if (!task.reads_records())
      refuse("data.drop_duplicates", of_task + " reads texts, not records", "remove it");
    if (options.type == "image_classify")
      refuse("data.drop_duplicates", "records of images are not compared", "remove it");
    if (data.streaming > 0)
      refuse("data.drop_duplicates",
             "data.streaming reads each file by itself",
             "remove one of the two");
    if (!data.sources.is_null())
      refuse("data.drop_duplicates",
             "the sources of data.sources are read each by itself",
             "name the files in data.train");
  }
  if (task.reads_records()) {
    if (data.separate_documents)
      refuse("data.separate_documents",
             of_task + " reads records, each apart from the others",
             "remove it");
  }
  if (data.folds) {
    if (!task.reads_records() || task.writes_answers())
      refuse("data.folds",
             of_task + (task.reads_records() ? " evaluates its rewards" : " reads texts") +
                 ", and folds divide records with answers or labels",
             "remove it; data.validation_fraction holds out the end of the data");
    if (data.streaming > 0)
      refuse(
          "data.folds", "data.streaming holds out the end of each file", "remove one of the two");
    if (!data.validation.empty() || data.validation_fraction > 0)
      refuse("data.folds",
             "one of the folds is held out, and the validation data is given as well",
             "remove data.validation and data.validation_fraction, or data.folds");
    if (data.fold > *data.folds)
      refuse("data.fold",
             fmt::format("there are {} folds", *data.folds),
             fmt::format("give a number from 1 to {}", *data.folds));
  }
  if (!data.folds && data.fold != 1)
    refuse("data.fold", "data.folds is not given", "set data.folds, or remove data.fold");
  if (data.streaming > 0) {
    if (!task.streams())
      refuse("data.streaming",
             "data.streaming is not built for " + of_task,
             "remove it: its samples are held in memory");
  }
  try {
    (void)data::sources_of(data.sources);
  } catch (const Error& error) {
    refuse("data.sources", error.what(), error.fix());
  }
  if (data.sources.is_null() && data.mix_until != "last")
    refuse("data.mix_until", "data.sources is not given", "remove it");
  const std::vector<std::string> formats = task.formats();
  if (data.format != "auto" && std::ranges::find(formats, data.format) == formats.end()) {
    refuse("data.format",
           fmt::format("{} does not read records of the kind {}", of_task, data.format),
           formats.empty() ? "remove it" : "give one of " + text::join(formats, ", "));
  }
}

}  // namespace tessera::tasks
