// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/task.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::tasks {

void TaskOptions::describe(config::Fields& fields) {
  fields.field("type",
               type,
               {.text = "Name of the task: pretrain learns to predict the next token of a text, "
                        "masked_lm the tokens of a text that are hidden, classify the label that a "
                        ".jsonl gives each of its texts, seq2seq the text that a .jsonl gives as "
                        "the answer to another one, tag the label of each word, and image_classify "
                        "the class of a picture.",
                .choices = tasks().names()});
  fields.field(
      "params",
      params,
      {.text = "Its parameters; of classify: text_field, label_field, labels; of tag: "
               "tokens_field, tags_field, labels; of image_classify: image_field, label_field, "
               "labels, preprocessor; of masked_lm: probability, mask_share, random_share, "
               "mask_token, mask_token_id, dynamic, seed; of seq2seq: source_field, target_field, "
               "prefix, target_length.",
       .default_text = "none"});
}

void spell_out_task(json::Value& source) {
  json::Value* const task = source.is_object() ? source.find("task") : nullptr;
  if (task == nullptr || !task->is_string()) return;
  const json::Place place = task->place;
  json::Value type = std::move(*task);
  *task = json::Value::object();
  (*task)["type"] = std::move(type);
  task->place = place;
}

Registry<TaskFactory>& tasks() {
  static Registry<TaskFactory> registry("task");
  return registry;
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

}  // namespace tessera::tasks
