// SPDX-License-Identifier: Apache-2.0
// tessera predict: writes a classifier's prediction for each record of a file.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bad_records.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/model_task.h"
#include "tessera/cli/output_progress.h"
#include "tessera/cli/prediction_lines.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"
#include "tessera/data/slices.h"
#include "tessera/data/token_dataset.h"
#include "tessera/engine/open_model.h"
#include "tessera/engine/predictions.h"
#include "tessera/models/objective.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/record_fields.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct PredictFlags {
  std::string path, out, map;
  std::vector<std::string> data;
  std::optional<std::int64_t> length, batch;
  BadRecordFlag bad_records;
  RankFlags ranks;
  bool last = false;  ///< of a run, the newest checkpoint
  Common common;
};

bool parse_predict(PredictFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "predict",
      "Writes the prediction of a model that classifies, tags or estimates for each record of a "
      "file: one JSON line per record, in the file's order, with the record's own columns. The "
      "same command continues where it was interrupted (FILE.progress is there meanwhile); a "
      "finished file is replaced. A file that ends with .csv or .tsv becomes a table.",
      {"tessera predict runs/moods texts.csv --out moods.csv",
       "tessera predict ./bert-finetuned texts.jsonl --map '{\"text\": \"review\"}'",
       "tessera predict runs/birds folder-of-pictures --out birds.jsonl -n 2"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.positional("FILE", &words.data, "Records: .jsonl, .json, .csv or .tsv; no labels");
  arguments.option("--out",
                   &words.out,
                   "File for the predictions: .jsonl, .csv or .tsv [lines on standard output]");
  arguments.option(
      "--map", &words.map, "Field names, in the format of data.map [those of the run]");
  words.bad_records.declare(arguments, "gives it null in place of a prediction");
  arguments.option("--length",
                   &words.length,
                   "Maximum number of tokens per text; longer texts are truncated [as in the run; "
                   "else at most 512]");
  arguments.option("--batch", &words.batch, "Number of samples per batch [eval.micro_batch]");
  words.ranks.declare(arguments);
  add_last(arguments, &words.last);
  arguments.common(words.common);
  return arguments.parse(line);
}

/// The records to predict.
struct ToPredict {
  std::shared_ptr<const tasks::Task> task;
  std::unique_ptr<data::Dataset> dataset;
  std::vector<std::int64_t> numbers;  ///< of the records that the samples were made from
  std::vector<json::Value> records;   ///< all, null for one that cannot be read; empty: unknown
  std::int64_t micro_batch = 8;

  /// The number of lines of predictions.
  [[nodiscard]] std::int64_t lines() const {
    return records.empty() ? dataset->size() : std::ssize(records);
  }
  /// The number of the record, or else of the sample, that a prediction belongs to.
  [[nodiscard]] std::int64_t row_of(std::int64_t sample) const {
    return numbers.empty() ? sample : numbers[static_cast<std::size_t>(sample)];
  }
};

/// All records of the files, null for one that cannot be read; none if they are not files of
/// records.
std::vector<json::Value> records_of(const std::vector<std::string>& names,
                                    data::DataOptions options) {
  std::vector<json::Value> out;
  options.map = {};
  try {
    const data::RecordCounts counts =
        data::for_each_record(data::record_files(names, data::Split::Test),
                              tasks::record_options(options, ""),
                              [&](const data::Record& record) {
                                out.resize(static_cast<std::size_t>(record.number));
                                out.push_back(record.value);
                              });
    out.resize(static_cast<std::size_t>(counts.records + counts.bad));
  } catch (const Error&) {
    return {};
  }
  return out;
}

/// Tells how many records cannot be read, and why the first one cannot.
void warn_of_bad_records(const data::Dataset& dataset) {
  const auto* const records = dynamic_cast<const tasks::RecordDataset*>(&dataset.in_fixed_order());
  if (records == nullptr || records->stats().bad_records == 0) return;
  const std::int64_t bad = records->stats().bad_records;
  TESSERA_REQUIRE(dataset.size() > 0,
                  Data,
                  fmt::format("none of {} records can be read; the first: {}",
                              text::with_commas(bad),
                              records->refused().front()),
                  "correct the file, or name its fields with --map");
  log::warn(fmt::format("{} of {} records cannot be read and have no prediction; the first: {}",
                        text::with_commas(bad),
                        text::with_commas(records->stats().documents + bad),
                        records->refused().front()));
}

ToPredict open_to_predict(const PredictFlags& words, const engine::OpenModel& opened) {
  constexpr std::int64_t kLength = 512;
  ToPredict out;
  data::DataOptions options;
  std::int64_t length = std::min(opened.shape.max_positions, kLength);
  if (opened.config) {
    json::Value config = *opened.config;
    if (json::Value* const task = config.find("task"))
      use_thresholds(opened.shape.objective, (*task)["params"]);
    const planner::Plan plan =
        planner::make_plan(config, opened.trained_on, opened.source.string());
    out.micro_batch = planner::eval_options_of(plan).micro_batch;
    options = planner::data_options_of(plan);
    out.task = planner::task_of(plan);
    length = planner::sequence_length_of(plan);
  } else {
    config::Problems problems;
    tasks::TaskOptions chosen = task_options_of(opened.shape.objective, /*labelled=*/false);
    const auto exported_length = tasks::use_record_fields(opened.source, chosen, options);
    length = std::min(opened.shape.max_positions, exported_length.value_or(kLength));
    out.task = tasks::make_task(chosen, problems);
    problems.raise();
  }
  if (!words.map.empty()) options.map = json::parse(words.map, "--map");
  options.map_may_miss = true;
  options.drop_duplicates = false;  // every record has a prediction
  words.bad_records.apply(options, *out.task);
  out.micro_batch = words.batch.value_or(out.micro_batch);
  naming_bad_record_flag([&] {
    out.dataset = out.task->open_to_predict({.options = options,
                                             .tokenizer = *opened.tokenizer,
                                             .vocab_size = opened.shape.vocab_size,
                                             .sequence_length = words.length.value_or(length),
                                             .how = {},
                                             .model = &opened.shape.description,
                                             .model_folder = opened.source,
                                             .predict = true},
                                            words.data);
  });
  warn_of_bad_records(*out.dataset);
  out.numbers = tasks::record_numbers(*out.dataset);
  if (!out.numbers.empty()) {
    out.records = records_of(words.data, options);
    if (std::ssize(out.records) <= out.numbers.back()) out.records.clear();
  } else if (models::traits_of(opened.shape.objective.name).predicts !=
             models::Predicts::ImageClass) {
    log::warn(
        fmt::format("not every record became one of the {} samples: predictions are numbered by "
                    "samples and have no columns of the records",
                    text::with_commas(out.dataset->size())));
  }
  return out;
}

/// The number of the first sample whose line is not among the first `made` ones. If only lines
/// without a prediction are missing, it is the last sample, whose prediction they take after.
std::int64_t first_sample(const ToPredict& data, std::int64_t made) {
  if (made == data.lines()) return data.dataset->size();
  if (data.records.empty()) return made;
  const auto next = std::ranges::lower_bound(data.numbers, made) - data.numbers.begin();
  return std::min<std::int64_t>(next, data.dataset->size() - 1);
}

/// The lines of predictions in the file, without an incomplete last one.
MadeLines already_predicted(const std::string& path, const ToPredict& data) {
  std::error_code ignored;
  if (path.empty() || !fs::exists(path, ignored)) return {};
  if (PredictionTable::separator_of(path)) return {};  // it is replaced
  const std::string held = files::read(path);
  std::size_t begin = 0;
  std::int64_t count = 0;
  for (std::size_t end = held.find('\n'); end != std::string::npos; end = held.find('\n', begin)) {
    const std::string place = fmt::format("{}:{}", path, count + 1);
    const json::Value value = json::parse_strict(held.substr(begin, end - begin), place);
    const json::Value* const row = value.is_object() ? value.find("row") : nullptr;
    TESSERA_REQUIRE(row != nullptr && row->is_number() && count < data.lines() &&
                        row->as_integer() == (data.records.empty() ? data.row_of(count) : count),
                    Data,
                    place + " is not a prediction of the record in that place",
                    "choose another --out, or remove the file");
    begin = end + 1;
    ++count;
  }
  return {static_cast<std::size_t>(count), begin};
}

void predict_on(engine::OpenModel& model,
                const PredictFlags& words,
                const ToPredict& data,
                const OutputProgress& progress,
                const MadeLines& kept,
                bool is_leader) {
  Terminal terminal;
  OutputFile file;
  const auto made = static_cast<std::int64_t>(kept.count);
  const std::optional<char> separator = PredictionTable::separator_of(words.out);
  PredictionTable table(separator.value_or(','));
  if (is_leader && !words.out.empty()) {
    file.open(words.out, kept.bytes);
  }
  const std::vector<std::string> names = label_names(model.shape.objective);
  const std::int64_t all = data.dataset->size(), first = first_sample(data, made);
  const double start = now_s();
  bool begun = separator.has_value();  // a table has no note, because it is replaced
  PredictionsByRecord lines(data.records, made, [&](const json::Value& line) {
    if (words.out.empty()) {
      terminal.data(line.dump());
      return;
    }
    if (!std::exchange(begun, true)) {
      file.replace();
      progress.begin();
    }
    file.write(separator ? table.rows_of(line) : line.dump() + '\n');
  });
  engine::predict(
      *model.executor,
      *model.world,
      *data.dataset,
      first,
      data.micro_batch,
      [&](std::int64_t sample, const tasks::Predictions& rows) {
        if (!is_leader) return;
        tasks::Predictions own = rows;
        own.places = tasks::places_of(*data.dataset, sample);
        lines.add(data.row_of(sample), data.task->prediction(own, names));
        const double passed = now_s() - start;
        if (!words.out.empty() && !words.common.quiet)
          terminal.live(fmt::format("{} of {} records, {:.0f} a second, {} left",
                                    text::with_commas(sample + 1),
                                    text::with_commas(all),
                                    static_cast<double>(sample + 1 - first) / passed,
                                    text::duration(passed * static_cast<double>(all - sample - 1) /
                                                   static_cast<double>(sample + 1 - first))));
      });
  if (is_leader) lines.finish();
  if (!is_leader || words.out.empty()) return;
  file.close();
  if (!separator) progress.finish();
  if (!words.common.quiet) {
    terminal.line(fmt::format(
        "{} predictions in {}{}{}",
        text::with_commas(all),
        words.out,
        data.lines() > all
            ? fmt::format(", and null for {} other records", text::with_commas(data.lines() - all))
            : "",
        made > 0 ? fmt::format("; {} lines are from before", made) : ""));
  }
}

int predict(const std::vector<std::string>& line) {
  PredictFlags words;
  if (!parse_predict(words, line)) return kExitOk;
  for (const auto& [value, option] :
       {std::pair{words.length, "--length"}, std::pair{words.batch, "--batch"}}) {
    TESSERA_REQUIRE(!value || *value > 0,
                    Config,
                    fmt::format("{} {}: expected 1 or more", option, value.value_or(0)),
                    "");
  }
  std::vector<fs::path> inputs;
  for (const std::string& name : words.data) {
    inputs.emplace_back(data::cut_slice(name).name);
    require_other_file(inputs.back(), words.out);
  }
  const fs::path path = model_at(words.path, words.last, words.common);
  auto found = engine::find_model(path);
  const ToPredict data = open_to_predict(words, *found);
  inputs.push_back(path);
  const OutputProgress progress(words.out, command_text("predict", line, inputs));
  const MadeLines made =
      progress.kept(already_predicted(words.out, data), static_cast<std::size_t>(data.lines()));
  return with_model(std::move(found),
                    words.ranks,
                    engine::ReadAs::F32,
                    [&](engine::OpenModel& model, bool is_leader) {
                      predict_on(model, words, data, progress, made, is_leader);
                    });
}

TESSERA_COMMAND("predict", "write a classifier's prediction for each record", predict);

}  // namespace
}  // namespace tessera::cli
