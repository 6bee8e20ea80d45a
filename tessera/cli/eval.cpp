// SPDX-License-Identifier: Apache-2.0
// tessera eval: loss, perplexity and bits per byte on held-out text; accuracy and rewards of pairs.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bad_records.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/eval_rl.h"
#include "tessera/cli/model_task.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/open_model.h"
#include "tessera/engine/reference.h"
#include "tessera/engine/written_texts.h"
#include "tessera/interop/label_thresholds.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/record_fields.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kLength = 512;    // of texts that a model without a run classifies
constexpr std::int64_t kMicroBatch = 8;  // for data that does not belong to a run

struct EvalFlags {
  std::string path;
  std::vector<std::string> data;
  std::optional<std::int64_t> batches, generate;
  std::int64_t max_new_tokens = 128;
  std::string task, map;
  BadRecordFlag bad_records;
  bool thresholds = false;
  RankFlags ranks;
  bool last = false;  ///< of a run, the newest checkpoint
  Common common;
};

bool parse(EvalFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "eval",
      "Measures a run (its newest checkpoint, or the best if it stopped early), a checkpoint or a "
      "Hugging Face folder on held-out text. "
      "A "
      "run of the task rl answers held-out prompts, and the answers are rewarded. Of reward models "
      "and preferences it prints the accuracy of pairs, the margin and the rewards.",
      {"tessera eval runs/my",
       "tessera eval runs/my --data other.txt",
       "tessera eval runs/my -n 4               for a model that does not fit on one rank",
       "tessera eval ./gpt2 --data my.jsonl --json",
       "tessera eval ./bert-finetuned --data QNLI/dev.tsv",
       "tessera eval runs/tags --thresholds",
       "tessera eval runs/summaries --generate 100"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.option("--data",
                   &words.data,
                   "Text, folder or .bin/.idx pair, read with the data options of the run [the "
                   "run's validation data]");
  arguments.option(
      "--map", &words.map, "Field names, in the format of data.map [those of the run]");
  words.bad_records.declare(arguments, "leaves it out");
  arguments.option("--batches", &words.batches, "Number of batches to evaluate [all of the data]");
  arguments.option(
      "--generate",
      &words.generate,
      "Let a model of the tasks sft and seq2seq answer that many samples, and print how "
      "near its texts come: exact match, ROUGE, BLEU [none]");
  arguments.option("--max-new-tokens", &words.max_new_tokens, "Tokens of an answer at most [128]");
  arguments.option(
      "--task",
      &words.task,
      "Task of a model without a run: a name, or {\"type\": ..., \"params\": {...}} as in "
      "a configuration [that of its head]");
  arguments.flag("--thresholds",
                 words.thresholds,
                 "Choose for each label of a classifier of several labels the probability above "
                 "which it is predicted, by the best F1, and keep it next to the weights, for "
                 "predict and convert");
  words.ranks.declare(arguments);
  add_last(arguments, &words.last);
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

/// The held-out data, and the batch size.
struct HeldOut {
  std::shared_ptr<const data::Dataset> dataset;
  std::int64_t micro_batch = kMicroBatch;
  std::shared_ptr<const tasks::Task> task;
};

/// The validation data that the run split off its training data.
std::shared_ptr<const data::Dataset> tail_of_run(const planner::Plan& plan) {
  // Streamed data uses the tokenizer and the task when it is read.
  struct Owner {
    text::TokenizerPtr tokenizer;
    std::shared_ptr<const tasks::Task> task;
    std::shared_ptr<const data::Datasets> datasets;
  };
  const auto owner = std::make_shared<const Owner>(
      Owner{plan.data().tokenizer, plan.data().task, engine::open_data(plan, {})});
  return {owner, owner->datasets->validation.get()};
}

/// The task of a model that does not belong to a run.
tasks::TaskOptions task_options_for(const EvalFlags& words,
                                    const models::ObjectiveChoice& objective) {
  if (words.task.empty()) return task_options_of(objective, /*labelled=*/true);
  json::Value config = json::Value::object();
  config["task"] = words.task.starts_with('{') ? json::parse(words.task, "--task")
                                               : json::Value::string(words.task);
  tasks::spell_out_task(config);
  tasks::TaskOptions out;
  config::Problems problems;
  config::Origins origins;
  config::read(*config.find("task"), out, problems, origins);
  problems.raise();
  return out;
}

HeldOut held_out(const EvalFlags& words, const engine::OpenModel& opened) {
  TESSERA_REQUIRE(words.map.empty() || !words.data.empty(),
                  Config,
                  "--map names the fields of --data, which is missing",
                  "name the files with --data, or leave out --map");
  HeldOut out;
  data::DataOptions options;
  std::shared_ptr<const tasks::Task>& task = out.task;
  std::int64_t length = opened.shape.max_positions;
  std::vector<std::string> names = words.data;
  std::filesystem::path tokenizer_folder;
  if (opened.config) {
    TESSERA_REQUIRE(words.task.empty(),
                    Config,
                    words.path + " belongs to a run, which has its task",
                    "leave out --task");
    json::Value config = *opened.config;
    if (json::Value* const of_run = config.find("task"))
      use_thresholds(opened.shape.objective, (*of_run)["params"]);
    const planner::Plan plan =
        planner::make_plan(config, opened.trained_on, opened.source.string());
    out.micro_batch = planner::eval_options_of(plan).micro_batch;
    options = plan.data().options;
    task = plan.data().task;
    length = plan.data().sequence_length;
    if (words.generate) options.pack = false;
    tokenizer_folder = std::filesystem::path(plan.data().tokenizer_options.vocab).parent_path();
    if (names.empty()) names = options.validation;
    if (names.empty() && options.holds_out() && words.generate) {
      throw Error(Error::Kind::Config,
                  "--generate needs data of its own: the run held out a part of data.train, whose "
                  "samples may hold several texts",
                  "specify it with --data");
    }
    if (names.empty() && options.holds_out()) {
      TESSERA_REQUIRE(words.bad_records.given.empty(),
                      Config,
                      "--on-bad-record belongs to --data: what the run held out is read as in the "
                      "training",
                      "leave it out");
      out.dataset = tail_of_run(plan);
      return out;
    }
  }
  TESSERA_REQUIRE(!names.empty(),
                  Config,
                  words.path + (opened.config ? " was trained without validation data"
                                              : " has no validation data of its own"),
                  "specify it with --data");
  config::Problems problems;
  // For a model that does not belong to a run.
  std::optional<std::int64_t> exported_length;
  if (task == nullptr) {
    tasks::TaskOptions chosen = task_options_for(words, opened.shape.objective);
    exported_length = tasks::use_record_fields(opened.source, chosen, options);
    task = tasks::make_task(chosen, problems);
    problems.raise();
    // A text that is continued fills windows of any length; other samples are short.
    const bool windows =
        !task->reads_records() && task->token_labels() == tasks::TokenLabels::NextToken;
    if (!windows) length = std::min(length, exported_length.value_or(kLength));
  }
  if (!words.map.empty()) options.map = json::parse(words.map, "--map");
  words.bad_records.apply(options, *task);
  const data::TokenizeOptions how;
  naming_bad_record_flag([&] {
    out.dataset = task->open_held_out({.options = options,
                                       .tokenizer = *opened.tokenizer,
                                       .vocab_size = opened.shape.vocab_size,
                                       .sequence_length = length,
                                       .how = how,
                                       .model = &opened.shape.description,
                                       .model_folder = opened.source,
                                       .tokenizer_folder = tokenizer_folder},
                                      names,
                                      words.data.empty() ? "data.validation" : "--data")
                      .dataset;
  });
  return out;
}

/// The plan of the run that trained a model, with the model that the run began with.
planner::Plan plan_with_beginning(const engine::OpenModel& model) {
  const checkpoint::Meta meta = checkpoint::Checkpoint(model.source).meta();
  return planner::make_plan(meta.config, model.trained_on, model.source.string());
}

/// Number of bytes of text for the labels of the first `samples` samples; end-of-text labels count
/// none. Nothing if a label has no text, or if all labels are end of text.
std::optional<std::int64_t> label_bytes(const data::Dataset& dataset,
                                        std::int64_t samples,
                                        const text::Tokenizer& tokenizer) {
  std::int64_t bytes = 0;
  for (std::int64_t s = 0; s < samples; ++s) {
    data::Sample sample(dataset, s);
    for (const std::int64_t label : sample.values<std::int64_t>("labels")) {
      if (label < 0 || label == tokenizer.end_of_text()) continue;
      const std::size_t of_label = tokenizer.bytes_of(static_cast<std::int32_t>(label)).size();
      if (of_label == 0) return std::nullopt;
      bytes += static_cast<std::int64_t>(of_label);
    }
  }
  return bytes > 0 ? std::optional(bytes) : std::nullopt;
}

std::string label_of(const models::ObjectiveChoice& objective, std::size_t id) {
  const json::Value* const names = objective.options.find("labels");
  const bool named = names != nullptr && names->is_array() && id < names->items().size();
  return named ? names->items()[id].as_string() : std::to_string(id);
}

/// True when every row is predicted as exactly one of several classes, so that a confusion matrix
/// exists.
bool has_classes(const tasks::Predictions& predictions) {
  return predictions.width > 1 && predictions.label_width == 1 && predictions.rows() > 0;
}

json::Value classes_json(const tasks::ClassificationReport& report,
                         const models::ObjectiveChoice& objective) {
  const auto told = [](const tasks::ClassReport& one) {
    return json::Value::object({{"precision", json::Value::number(one.precision)},
                                {"recall", json::Value::number(one.recall)},
                                {"f1", json::Value::number(one.f1)},
                                {"support", json::Value::integer(one.support)}});
  };
  json::Value out = json::Value::object(), confusion = json::Value::array();
  const std::size_t classes = report.classes.size();
  for (std::size_t c = 0; c < classes; ++c) {
    out[label_of(objective, c)] = told(report.classes[c]);
    json::Value row = json::Value::array();
    for (std::size_t p = 0; p < classes; ++p)
      row.push_back(json::Value::integer(report.confusion[c * classes + p]));
    confusion.push_back(std::move(row));
  }
  return json::Value::object({{"classes", std::move(out)},
                              {"macro", told(report.macro)},
                              {"weighted", told(report.weighted)},
                              {"confusion", std::move(confusion)}});
}

void print_classes(const tasks::ClassificationReport& report,
                   const models::ObjectiveChoice& objective,
                   Terminal& terminal) {
  constexpr std::size_t kMostColumns = 12;
  const std::size_t classes = report.classes.size();
  std::size_t width = std::string_view("weighted").size();
  for (std::size_t c = 0; c < classes; ++c)
    width = std::max(width, label_of(objective, c).size());
  const auto line = [&](const std::string& name, const tasks::ClassReport& one) {
    terminal.line(fmt::format("  {:<{}}  {:>9.4f}  {:>9.4f}  {:>9.4f}  {:>9}",
                              name,
                              width,
                              one.precision,
                              one.recall,
                              one.f1,
                              text::with_commas(one.support)));
  };
  terminal.line(fmt::format(
      "  {:<{}}  {:>9}  {:>9}  {:>9}  {:>9}", "", width, "precision", "recall", "f1", "support"));
  for (std::size_t c = 0; c < classes; ++c)
    line(label_of(objective, c), report.classes[c]);
  line("macro", report.macro);
  line("weighted", report.weighted);
  if (classes > kMostColumns) return;
  terminal.line("confusion (rows: true, columns: predicted)");
  for (std::size_t c = 0; c < classes; ++c) {
    std::string row = fmt::format("  {:<{}}", label_of(objective, c), width);
    for (std::size_t p = 0; p < classes; ++p)
      row += fmt::format("  {:>7}", report.confusion[c * classes + p]);
    terminal.line(row);
  }
}

/// Chooses the thresholds of a classifier of several labels, prints them, and keeps them.
void choose_thresholds(const tasks::Predictions& predictions,
                       const engine::OpenModel& model,
                       const EvalFlags& words) {
  const json::Value* const problem = model.shape.objective.options.find("problem_type");
  TESSERA_REQUIRE(problem != nullptr && problem->as_string() == "multi_label_classification" &&
                      predictions.label_width == predictions.width && predictions.rows() > 0,
                  Config,
                  "--thresholds: the model is not a classifier of several labels",
                  "leave it out");
  Terminal terminal;
  std::vector<double> values;
  const std::vector<tasks::Threshold> best = tasks::best_f1_thresholds(predictions);
  for (std::size_t c = 0; c < best.size(); ++c) {
    values.push_back(best[c].value);
    if (!words.common.json) {
      terminal.line(fmt::format("  {}: above {:.4f}, F1 {:.4f}",
                                label_of(model.shape.objective, c),
                                best[c].value,
                                best[c].f1));
    }
  }
  interop::write_label_thresholds(model.source, values);
}

/// Scores of the texts that the model writes.
std::vector<tasks::NamedValue> scores_of(engine::OpenModel& model,
                                         const HeldOut& data,
                                         const EvalFlags& words,
                                         bool is_leader) {
  TESSERA_REQUIRE(data.task->has_answers(),
                  Config,
                  "--generate: only runs of the tasks sft and seq2seq have samples with an answer",
                  "leave it out");
  engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
  engine::GenerateOptions options;
  options.max_new_tokens = words.max_new_tokens;
  options.sampler.temperature = 0.0;
  Terminal terminal;
  const std::int64_t count = std::min(*words.generate, data.dataset->size());
  const auto texts =
      engine::write_texts(generator,
                          *data.dataset,
                          *model.tokenizer,
                          count,
                          model.shape.trunk.output.target.has_value(),
                          options,
                          [&](std::int64_t done) {
                            if (is_leader && !words.common.quiet && !words.common.json)
                              terminal.live(fmt::format("{} of {} answers", done, count));
                          });
  return tasks::text_scores(texts);
}

void print(const EvalFlags& words,
           const engine::EvalReport& report,
           const std::vector<tasks::NamedValue>& scores,
           std::optional<std::int64_t> bytes,
           const std::string& counted,
           const models::ObjectiveChoice& objective,
           const std::string& source) {
  const bool tokens = counted == "tokens";
  const double bits = report.loss * static_cast<double>(report.tokens) /
                      static_cast<double>(bytes.value_or(1)) / std::log(2.0);
  Terminal terminal;
  if (words.common.json) {
    json::Value out = json::Value::object();
    out["loss"] = json::Value::number(report.loss);
    if (tokens) {
      out["perplexity"] = json::Value::number(std::exp(report.loss));
      out["bits_per_byte"] = bytes ? json::Value::number(bits) : json::Value();
    }
    out[counted] = json::Value::integer(report.tokens);
    out["samples"] = json::Value::integer(report.samples);
    out["of_samples"] = json::Value::integer(report.of_samples);
    if (report.metrics.size() > 1) {
      out["terms"] = json::Value::object();
      for (const engine::Metric& metric : report.metrics)
        out["terms"][metric.name] = json::Value::number(metric.mean);
    }
    for (const tasks::NamedValue& score : scores)
      out[score.name] = json::Value::number(score.value);
    if (has_classes(report.predictions)) {
      json::Value classes =
          classes_json(tasks::classification_report(report.predictions), objective);
      for (auto& [name, value] : classes.members())
        out[name] = std::move(value);
    }
    out["model"] = json::Value::string(source);
    terminal.data(out.dump());
    return;
  }
  terminal.line(
      fmt::format("loss {:.4f}{}{} | {}{} {}{} | {}",
                  report.loss,
                  tokens ? fmt::format(" | perplexity {:.3f}", std::exp(report.loss)) : "",
                  engine::metrics_text(report.metrics),
                  bytes ? fmt::format("{:.4f} bits per byte | ", bits) : "",
                  text::with_commas(report.tokens),
                  counted,
                  engine::part_text(report),
                  source));
  for (const tasks::NamedValue& score : scores)
    terminal.line(fmt::format("  {:<12}{:>9.4f}", score.name, score.value));
  if (has_classes(report.predictions))
    print_classes(tasks::classification_report(report.predictions), objective, terminal);
}

int eval(const std::vector<std::string>& line) {
  EvalFlags words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(!words.batches || *words.batches > 0,
                  Config,
                  fmt::format("--batches {}: expected 1 or more", words.batches.value_or(0)),
                  "");
  TESSERA_REQUIRE((!words.generate || *words.generate > 0) && words.max_new_tokens > 0,
                  Config,
                  "--generate and --max-new-tokens: expected 1 or more",
                  "");
  auto found = engine::find_model(model_at(words.path, words.last, words.common));
  const HeldOut data = held_out(words, *found);
  if (found->config && data.task->writes_answers()) {
    TESSERA_REQUIRE(!words.generate && !words.thresholds,
                    Config,
                    "--generate and --thresholds: a policy always answers and is not a classifier",
                    "leave them out; rl.validation of the run says how it answers");
    std::optional<std::int64_t> prompts;
    if (words.batches) prompts = std::min(*words.batches, data.dataset->size()) * data.micro_batch;
    return eval_rl(*found, data.dataset, prompts, words.ranks, words.common.json);
  }
  const std::int64_t size = data.dataset->size();
  const bool all = !words.batches || *words.batches > size / data.micro_batch;
  const std::int64_t samples = all ? size : *words.batches * data.micro_batch;
  // The loss of these samples needs what the run's first model says of them.
  std::unique_ptr<engine::OpenModel> beginning;
  if (found->config && data.dataset->made_by_model())
    beginning = engine::initial_model(plan_with_beginning(*found));
  const engine::OpenModel* const beside = beginning.get();
  return with_model(
      std::move(found),
      words.ranks,
      engine::ReadAs::F32,
      [&](engine::OpenModel& model, bool is_leader) {
        std::shared_ptr<const data::Dataset> dataset = data.dataset;
        if (beginning) {
          const std::unique_ptr<engine::OpenModel> reference = std::move(beginning);
          engine::load_model(*reference, *model.world);
          dataset = engine::with_reference(
              dataset, *reference->executor, *model.world, samples, data.micro_batch);
        }
        const engine::EvalReport report = engine::evaluate(*model.executor,
                                                           *model.world,
                                                           *dataset,
                                                           samples,
                                                           data.micro_batch,
                                                           {},
                                                           data.task.get());
        std::vector<tasks::NamedValue> scores;
        if (words.generate) scores = scores_of(model, data, words, is_leader);
        if (!is_leader) return;
        const std::string counted = engine::counted_by(*data.dataset, model.shape.objective);
        std::optional<std::int64_t> bytes;
        if (counted == "tokens") bytes = label_bytes(*data.dataset, samples, *model.tokenizer);
        if (words.thresholds) choose_thresholds(report.predictions, model, words);
        print(words, report, scores, bytes, counted, model.shape.objective, model.source.string());
      },
      beside);
}

TESSERA_COMMAND("eval", "measure a trained model on held-out text", eval);

}  // namespace
}  // namespace tessera::cli
