// SPDX-License-Identifier: Apache-2.0
// tessera data: shows what training will see of some data.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/config/overrides.h"
#include "tessera/data/slices.h"
#include "tessera/engine/open_model.h"
#include "tessera/launch/early_stop.h"
#include "tessera/models/model_source.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/tasks/data_survey.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/saved_classes.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNothing = -100;
constexpr std::int64_t kDefaultLength = 1024;  // sample length if neither file nor model defines it

struct DataFlags {
  std::string source, model;
  std::vector<std::string> set;
  std::int64_t samples = 3;
  Common common;
};

bool parse(DataFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "data",
      "Shows what training will see: the first samples token by token, with what is learned of "
      "them, and counts over all data. Learned tokens are green on a terminal and are shown in {+ "
      "+} "
      "elsewhere. Data of which something can never be learned is an error.",
      {"tessera data my.json",
       "tessera data my.json --samples 10 --set data.on_bad_record=skip",
       "tessera data chat.jsonl --model ./SmolLM2-135M-Instruct",
       "tessera data reviews.csv --json"});
  arguments.positional(
      "SOURCE", &words.source, "Configuration, or file, pattern or folder of data");
  arguments.option(
      "--model",
      &words.model,
      "Run, checkpoint, Hugging Face folder or .gguf: its tokenizer, chat template and "
      "length [the configuration's; for a file, the byte tokenizer and chatml]");
  arguments.option("--samples", &words.samples, "Number of samples to show [3]");
  arguments.option("--set", &words.set, "KEY=VALUE: overrides a key of the configuration");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

/// True when `word` names a configuration file, false when it names data: both may end in .json.
bool is_config(const std::string& word) {
  std::error_code ignored;
  if (!names_config(word)) return false;
  if (!fs::is_regular_file(word, ignored)) return true;
  const std::string extension = text::lower(fs::path(word).extension().string());
  if (extension == ".hjson" || extension == ".py") return true;
  if (extension != ".json") return false;
  const files::Mapped mapped(word);
  const std::string_view all = mapped.text();
  const std::size_t first = all.find_first_not_of("\xef\xbb\xbf \t\r\n");
  if (first == std::string_view::npos || all[first] == '[') return false;
  // A .json file is data when its first line is a whole record, or when it is an object with a list
  // of records as a member.
  const std::string_view line = all.substr(first, all.find('\n', first) - first);
  const auto has_data = [](const json::Value& value) {
    const json::Value* const data = value.is_object() ? value.find("data") : nullptr;
    return data != nullptr && data->is_object();
  };
  try {
    const json::Value value = json::parse_strict(line, word);
    return has_data(value);
  } catch (const Error&) {
    // The object spans several lines: it is a configuration or holds a list of records.
  }
  constexpr std::size_t kLargestConfig = 1 << 20;
  if (all.size() > kLargestConfig) return false;
  const json::Value value = read_config(word);
  return has_data(value) || std::ranges::none_of(value.members(), [](const auto& member) {
           return member.second.is_array() && !member.second.items().empty() &&
                  member.second.items().front().is_object();
         });
}

/// Data with the task that reads it.
struct Opened {
  tasks::TaskOptions task_options;
  std::shared_ptr<const tasks::Task> task;
  data::DataOptions options;
  text::TokenizerPtr tokenizer;
  data::TokenizeOptions how;
  std::int64_t vocab_size = 0, length = 0;
  std::optional<json::Value> model;
  fs::path model_folder, tokenizer_folder;
  std::string form;  // how the records were recognized; empty: by the configuration
  std::vector<std::string> notes;

  [[nodiscard]] tasks::DataRequest request() const {
    return {.options = options,
            .tokenizer = *tokenizer,
            .vocab_size = vocab_size,
            .sequence_length = length,
            .min_samples = 1,
            .how = how,
            .model = model ? &*model : nullptr,
            .model_folder = model_folder,
            .tokenizer_folder = tokenizer_folder};
  }
};

void open_config(const DataFlags& words, Opened& out) {
  json::Value source = read_config(words.source);
  for (const std::string& one : words.set)
    config::apply_override(source, one);
  if (!words.model.empty() && source.is_object()) {
    std::erase_if(source.members(), [](const auto& member) {
      return member.first == "model" || member.first == "tokenizer";
    });
    source["model"] = json::Value::object({{"from", json::Value::string(words.model)}});
  }
  const planner::Plan plan = planner::make_plan(source, 1, name_of_config(words.source));
  out.task_options = plan.data().task_options;
  out.task = plan.data().task;
  out.options = plan.data().options;
  out.tokenizer = plan.data().tokenizer;
  out.vocab_size = plan.model().resolved.vocab_size;
  out.length = plan.data().sequence_length;
  out.model = plan.model().resolved.description;
  out.model_folder = plan.model().options->from.value_or("");
  out.tokenizer_folder = fs::path(plan.data().tokenizer_options.vocab).parent_path();
}

void open_tokenizer(const DataFlags& words, Opened& out) {
  if (words.model.empty()) {
    out.tokenizer = text::make_tokenizer({});
    out.vocab_size = out.tokenizer->size();
    out.length = kDefaultLength;
    return;
  }
  const auto found = engine::find_model(words.model);
  out.tokenizer = found->tokenizer;
  TESSERA_REQUIRE(out.tokenizer != nullptr,
                  Config,
                  words.model + " has no tokenizer",
                  "name a model that has one, or leave --model out");
  out.vocab_size = found->shape.vocab_size;
  out.length = found->shape.max_positions > 0 ? found->shape.max_positions : kDefaultLength;
  out.model_folder = found->source;
  out.tokenizer_folder = found->beside;
}

/// The first record that can be read; nothing if there is none.
std::optional<data::Record> first_record(const std::vector<std::string>& files,
                                         const data::RecordOptions& how) {
  struct Found {};
  std::optional<data::Record> out;
  try {
    data::for_each_record(files, how, [&](const data::Record& record) {
      out = record;
      throw Found{};
    });
  } catch (const Found&) {
    // The task reads the rest.
  }
  return out;
}

/// True when the file holds plain text or token ids instead of records.
bool is_text(const std::string& typed) {
  std::error_code ignored;
  const std::string name = data::cut_slice(typed).name;
  const std::string extension = text::lower(fs::path(name).extension().string());
  return extension == ".txt" || extension == ".bin" || extension == ".idx" ||
         (!fs::exists(name, ignored) && fs::exists(name + ".idx", ignored));
}

void open_file(const DataFlags& words, Opened& out) {
  json::Value source = json::Value::object();
  source["data"] = json::Value::object({{"train", json::Value::string(words.source)}});
  for (const std::string& one : words.set)
    config::apply_override(source, one);
  config::Problems problems;
  config::Origins origins;
  for (const auto& [key, value] : source.members()) {
    if (key != "data")
      problems.add(value.place, key, "only keys of data are read with a file", "remove it");
  }
  config::read(*source.find("data"), out.options, problems, origins);
  problems.raise();
  open_tokenizer(words, out);
  out.length = out.options.sequence_length.value_or(out.length);
  if (is_text(words.source)) {
    out.form = "text";
  } else {
    out.options.pack = false;  // each record separately
    const data::RecordOptions how = tasks::record_options(out.options, "");
    const auto record =
        first_record(data::record_files(out.options.train, data::Split::Train), how);
    TESSERA_REQUIRE(record, Data, words.source + " has no record", "give a file that has some");
    out.task_options = tasks::task_for(*record, words.model.empty() ? "chatml" : "");
    out.form = "recognised by its fields";
    if (words.model.empty() && out.task_options.type == "sft")
      out.notes.emplace_back("without --model, conversations are shown with the template chatml");
  }
  // A saved classifier's classes have its numbers.
  std::optional<tasks::SavedObjective> saved;
  if (!words.model.empty()) {
    const models::ModelSource model = models::open_model_source(words.model);
    saved = {model.objective.name, model.objective.options};
  }
  out.task = tasks::make_task_of(
      saved ? &*saved : nullptr, out.options, out.task_options, problems, out.notes);
  problems.raise();
}

bool colours() {
  const char* const plain = std::getenv("NO_COLOR");
  return Terminal().is_terminal() && (plain == nullptr || *plain == '\0');
}

/// Text of a file for a terminal: control characters are escaped, lines are wrapped with an indent.
std::string shown(std::string_view text, std::string_view indent) {
  std::string out;
  for (const char c : text::replace_invalid_utf8(std::string(text))) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n\n";
      out += indent;
    } else if (c == '\t') {
      out += "\\t";
    } else if (code < 0x20 || code == 0x7F) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += c;
    }
  }
  return out;
}

std::string words_of(const text::Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  std::string out;
  std::vector<std::int32_t> run;
  const auto flush = [&] {
    out += tokenizer.decode(run);
    run.clear();
  };
  for (const std::int64_t id : ids) {
    const auto small = static_cast<std::int32_t>(id);
    const std::string_view bytes = tokenizer.bytes_of(small);
    // A token without visible text: end of text, padding, a mask.
    const bool silent = bytes.empty() || (bytes.size() == 1 && bytes[0] == '\0');
    if (!silent) {
      run.push_back(small);
      continue;
    }
    flush();
    out += small == tokenizer.end_of_text() ? std::string("<end of text>")
                                            : fmt::format("<{}>", small);
  }
  flush();
  return out;
}

class Printer {
 public:
  Printer(const Opened& opened, bool colour) : opened_(opened), colour_(colour) {}

  void sample(std::int64_t index, std::int64_t count, const tasks::SampleView& view) {
    std::vector<std::string> facts;
    const auto learned =
        std::ranges::count_if(view.labels, [](std::int64_t label) { return label != kNothing; });
    if (!view.ids.empty()) facts.push_back(fmt::format("{} tokens", view.ids.size()));
    if (learned > 0) facts.push_back(fmt::format("{} learned", learned));
    if (view.lengths.size() > 1) facts.push_back(fmt::format("{} texts", view.lengths.size()));
    if (view.padding > 0) facts.push_back(fmt::format("{} of padding", view.padding));
    out_.line(fmt::format(
        "\nsample {} of {}: {}", index + 1, text::with_commas(count), text::join(facts, ", ")));
    if (!view.ids.empty()) {
      print("  text    " + marked(view));
      print("  ids     " + numbers(view.ids, view.labels));
    }
    if (!view.target.empty()) {
      print("  target  " + mark(shown(words_of(*opened_.tokenizer, view.target), kIndent)));
      print("  ids     " + numbers(view.target, view.target));
    }
    if (view.label) print("  label   " + mark(shown(*view.label, kIndent)));
    for (const std::string& other : view.others)
      out_.line("  tensor  " + other);
  }

  void survey(const tasks::DataSurvey& survey) {
    const auto say = [&](const char* name, std::int64_t count) {
      out_.line(fmt::format("  {:<22} {:>14}", name, text::with_commas(count)));
    };
    out_.line("");
    say("samples", survey.samples);
    say(opened_.task->reads_records() ? "records" : "documents", survey.records);
    for (const auto& [form, count] : survey.forms)
      say(("  of the form " + form).c_str(), count);
    if (survey.tokens > 0) say("tokens", survey.tokens);
    if (survey.learned > 0) say("labels", survey.learned);
    if (survey.tells_end) say("ends that are labels", survey.end_labels);
    say(survey.estimated ? "duplicates, about" : "duplicates", survey.duplicates);
    say("empty", survey.empty);
    say("cut", survey.cut);
    say("bad", survey.bad);
    if (!opened_.options.validation.empty() && opened_.task->reads_records())
      say("validation is in train", survey.leaked);
    for (const std::string& refused : survey.refused)
      out_.line("    " + shown(refused, kIndent));
    for (const auto& [name, count] : survey.classes)
      say(("  class " + shown(name, kIndent)).c_str(), count);
    histogram(survey.lengths);
  }

 private:
  static constexpr const char* kIndent = "          ";

  /// Prints a line with marks, which a line without is not to have.
  void print(const std::string& line) { out_.data(line); }
  [[nodiscard]] std::string mark(const std::string& text) const {
    return colour_ ? "\033[32m" + text + "\033[0m" : "{+" + text + "+}";
  }

  /// The text with learned parts highlighted; a masked token is followed by its original text, and
  /// one that is classified by its tag.
  [[nodiscard]] std::string marked(const tasks::SampleView& view) const {
    const bool classes = !view.tags.empty();
    std::string out;
    for (std::size_t begin = 0; begin < view.ids.size();) {
      const auto hidden = [&](std::size_t t) {
        return view.labels[t] != kNothing && (classes || view.labels[t] != view.ids[t]);
      };
      const bool learned = view.labels[begin] != kNothing;
      std::size_t end = begin + 1;
      while (!hidden(begin) && end < view.ids.size() && !hidden(end) &&
             (view.labels[end] != kNothing) == learned)
        ++end;
      const auto from = view.ids.begin();
      const std::string text = shown(words_of(*opened_.tokenizer,
                                              {from + static_cast<std::ptrdiff_t>(begin),
                                               from + static_cast<std::ptrdiff_t>(end)}),
                                     kIndent);
      if (hidden(begin)) {
        out += text;
        out += mark(
            shown(classes ? view.tags[begin] : words_of(*opened_.tokenizer, {view.labels[begin]}),
                  kIndent));
      } else {
        out += learned ? mark(text) : text;
      }
      begin = end;
    }
    return out;
  }

  [[nodiscard]] std::string numbers(const std::vector<std::int64_t>& ids,
                                    const std::vector<std::int64_t>& labels) const {
    constexpr std::size_t kShown = 24;
    std::vector<std::string> out;
    for (std::size_t t = 0; t < std::min(kShown, ids.size()); ++t) {
      const std::string id = std::to_string(ids[t]);
      out.push_back(labels[t] != kNothing ? mark(id) : id);
    }
    if (ids.size() > kShown) out.push_back(fmt::format("... {} more", ids.size() - kShown));
    return text::join(out, " ");
  }

  /// Prints powers of two, with the shortest and the longest length.
  void histogram(std::vector<std::int64_t> lengths) {
    if (lengths.empty()) return;
    std::ranges::sort(lengths);
    constexpr std::int64_t kBar = 40;
    out_.line(fmt::format("\nlengths in tokens: {} to {}, half of them at most {}",
                          text::with_commas(lengths.front()),
                          text::with_commas(lengths.back()),
                          text::with_commas(lengths[(lengths.size() - 1) / 2])));
    for (const auto& [from, to, count] : bins(lengths)) {
      const auto filled = (count * kBar + std::ssize(lengths) - 1) / std::ssize(lengths);
      out_.line(fmt::format("  {:>9} - {:<9} {:>10} {}",
                            text::with_commas(from),
                            text::with_commas(to),
                            text::with_commas(count),
                            std::string(static_cast<std::size_t>(filled), '#')));
    }
  }

 public:
  struct Bin {
    std::int64_t from, to, count;
  };
  /// `lengths` must be sorted.
  static std::vector<Bin> bins(const std::vector<std::int64_t>& lengths) {
    std::vector<Bin> out;
    for (const std::int64_t length : lengths) {
      while (out.empty() || length > out.back().to) {
        const std::int64_t from = out.empty() ? 0 : out.back().to + 1;
        out.push_back({from, std::max<std::int64_t>(2 * from - 1, 1), 0});
      }
      ++out.back().count;
    }
    const auto used = [](const Bin& bin) { return bin.count > 0; };
    out.erase(out.begin(), std::ranges::find_if(out, used));
    return out;
  }

 private:
  const Opened& opened_;
  bool colour_;
  Terminal out_;
};

json::Value integers(const std::vector<std::int64_t>& values) {
  json::Value out = json::Value::array({});
  for (const std::int64_t value : values)
    out.push_back(json::Value::integer(value));
  return out;
}

json::Value as_json(const Opened& opened,
                    const tasks::DataSurvey& survey,
                    const std::vector<tasks::SampleView>& views) {
  json::Value out = json::Value::object();
  out["task"] = json::Value::string(opened.task_options.type);
  out["tokenizer"] = json::Value::string(opened.tokenizer->name());
  out["sequence_length"] = json::Value::integer(opened.length);
  const std::array<std::pair<const char*, std::int64_t>, 9> counts = {
      {{"samples", survey.samples},
       {"records", survey.records},
       {"tokens", survey.tokens},
       {"labels", survey.learned},
       {"duplicates", survey.duplicates},
       {"empty", survey.empty},
       {"cut", survey.cut},
       {"bad", survey.bad},
       {"validation_in_train", survey.leaked}}};
  for (const auto& [name, count] : counts)
    out[name] = json::Value::integer(count);
  if (survey.estimated) out["duplicates_estimated"] = json::Value::boolean(true);
  if (survey.tells_end) out["end_labels"] = json::Value::integer(survey.end_labels);
  out["forms"] = json::Value::object();
  for (const auto& [form, count] : survey.forms)
    out["forms"][form] = json::Value::integer(count);
  out["classes"] = json::Value::object();
  for (const auto& [name, count] : survey.classes)
    out["classes"][name] = json::Value::integer(count);
  std::vector<std::int64_t> lengths = survey.lengths;
  std::ranges::sort(lengths);
  out["lengths"] = json::Value::array({});
  for (const auto& [from, to, count] : Printer::bins(lengths)) {
    out["lengths"].push_back(json::Value::object({{"from", json::Value::integer(from)},
                                                  {"to", json::Value::integer(to)},
                                                  {"count", json::Value::integer(count)}}));
  }
  out["first"] = json::Value::array({});
  for (const tasks::SampleView& view : views) {
    json::Value one = json::Value::object();
    one["text"] =
        json::Value::string(text::replace_invalid_utf8(words_of(*opened.tokenizer, view.ids)));
    one["input_ids"] = integers(view.ids);
    one["labels"] = integers(view.labels);
    for (const std::string& tag : view.tags)
      one["tags"].push_back(tag.empty() ? json::Value() : json::Value::string(tag));
    if (!view.target.empty()) one["target"] = integers(view.target);
    if (view.label) one["label"] = json::Value::string(*view.label);
    one["padding"] = json::Value::integer(view.padding);
    out["first"].push_back(std::move(one));
  }
  return out;
}

int show_data(const std::vector<std::string>& line) {
  DataFlags words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(words.samples >= 0,
                  Config,
                  fmt::format("--samples {}: expected 0 or more", words.samples),
                  "");
  const launch::EarlyStop early;
  Opened opened;
  opened.how.poll = [&early] { early.check(); };
  if (is_config(words.source)) {
    open_config(words, opened);
  } else {
    open_file(words, opened);
  }
  for (const std::string& note : opened.notes)
    log::warn(note);
  opened.options.shuffle = false;  // streamed records are shown in their order, too
  const tasks::DataRequest request = opened.request();
  const data::Datasets datasets = opened.task->open(request);
  const tasks::DataSurveyor surveyor(
      *opened.task, request, datasets, tasks::ends_of_answers(opened.task_options, request));
  std::vector<tasks::SampleView> views;
  for (std::int64_t i = 0; i < std::min(words.samples, datasets.train->size()); ++i)
    views.push_back(surveyor.view(i));
  const tasks::DataSurvey survey = surveyor.survey();
  if (words.common.json) {
    Terminal().data(as_json(opened, survey, views).dump());
  } else if (!words.common.quiet) {
    Terminal().line(fmt::format("task {}{} | tokenizer {} | samples of {} tokens | {}",
                                opened.task_options.type,
                                opened.form.empty() ? "" : " (" + opened.form + ")",
                                opened.tokenizer->name(),
                                text::with_commas(opened.length),
                                text::join(opened.options.train, ", ")));
    Printer printer(opened, colours());
    for (std::size_t i = 0; i < views.size(); ++i)
      printer.sample(static_cast<std::int64_t>(i), survey.samples, views[i]);
    printer.survey(survey);
  }
  if (!opened.task->writes_answers()) surveyor.require_learnable(survey);
  return kExitOk;
}

TESSERA_COMMAND("data", "show the samples that training will see", show_data);

}  // namespace
}  // namespace tessera::cli
