// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/explain.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/document.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/draft.h"
#include "tessera/planner/train_config.h"
#include "tessera/planner/validate.h"

namespace tessera::report {
namespace {

using Problem = config::Problems::Problem;

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

const json::Value* find_path(const json::Value& source, std::string_view path) {
  const json::Value* at = &source;
  for (const std::string& step : text::split(path, '.')) {
    at = at->is_object() ? at->find(step) : nullptr;
    if (at == nullptr) return nullptr;
  }
  return at;
}

std::string in_words(const json::Value& value) {
  return value.is_string() && !value.as_string().empty() ? value.as_string() : value.dump();
}

bool starts_with(std::string_view path, std::string_view section) {
  return path.substr(0, section.size()) == section &&
         (path.size() == section.size() || path[section.size()] == '.');
}

std::string line_of(const Problem& problem) {
  std::string out = problem.place.text();
  if (!out.empty()) out += ": ";
  out += problem.path.empty() ? problem.what : problem.path + ": " + problem.what;
  return problem.fix.empty() ? out : out + "; " + problem.fix;
}

std::string reason_of(const Problem& problem) {
  return problem.fix.empty() ? problem.what : problem.what + "; instead: " + problem.fix;
}

std::string equation(const planner::BatchSizes& sizes, int data_ranks) {
  return fmt::format("train_batch_size {} = micro {} x accumulation {} x ranks {}",
                     sizes.global,
                     sizes.micro,
                     sizes.accumulation,
                     data_ranks);
}
std::string equation(const planner::Draft& draft) {
  const parallel::Layout& layout = draft.layout;
  return equation({draft.recipe.global_batch, layout.micro_batch, layout.accumulation},
                  layout.data_ranks);
}

// The smallest number of ranks with which the batch equation holds, and the equation.
struct MinRanks {
  int ranks = 1;
  std::string equation;
};
// Returns nothing if there is no such number.
std::optional<MinRanks> min_ranks(const planner::TrainConfig& config) {
  const auto unit = static_cast<int>(config.parallel.ranks_per_model());
  for (int ranks = 1; ranks * unit <= kMostRanks; ++ranks) {
    config::Problems ignored;
    if (const auto sizes = planner::solve_batch(config, ranks, ignored, config::Origins()))
      return MinRanks{ranks * unit, equation(*sizes, ranks)};
  }
  return std::nullopt;
}

class Explainer {
 public:
  Explainer(const json::Value& source, std::optional<int> ranks, std::string name_of_file)
      : name_of_file_(std::move(name_of_file)) {
    model_ = source.is_object() && source.find("model") != nullptr;
    data_ = source.is_object() && source.find("data") != nullptr;
    const planner::Draft first =
        planner::make_draft(source, ranks.value_or(1), name_of_file_, /*model=*/false);
    const auto least = min_ranks(first.config);
    const int few = least.value_or(MinRanks()).ranks;
    draft_ = planner::make_draft(source, ranks.value_or(few), name_of_file_, model_);
    resolved_ = planner::resolved_config(draft_, has_model());
    out_.ranks = draft_.ranks;
    out_.ranks_text = ranks_text(ranks.has_value(), least);
  }

  Explanation explain(const FormulaOf& formula) {
    for (const config::KeyDoc& key : config::document(planner::TrainConfig()))
      add(key);
    add_accepted();
    add_idle_auto();
    add_problems();
    add_idle_blocks();
    add_notes();
    if (formula) add_formula(formula);
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool has_model() const { return model_ && draft_.model.resolved.hidden_size > 0; }

  [[nodiscard]] std::string ranks_text(bool given, const std::optional<MinRanks>& least) const {
    const int ranks = draft_.ranks;
    const std::string count = fmt::format("{} {}", ranks, ranks == 1 ? "rank" : "ranks");
    if (given) return fmt::format("{}, as -n says", count);
    if (least) return fmt::format("{}, the fewest that close {}", count, least->equation);
    const planner::TrainConfig& config = draft_.config;
    if (!config.train_batch_size && !config.train_micro_batch_size_per_gpu)
      return fmt::format("{}: the batch size is not said", count);
    return fmt::format("{}: no number of ranks closes the batch arithmetic", count);
  }

  void add(const config::KeyDoc& key) {
    if (key.type.empty()) return;           // a section
    if (key.path == "run.derived") return;  // a list that a run folder keeps for internal use
    // For a file without these sections, only the other keys are shown.
    const bool about_model = starts_with(key.path, "model") || starts_with(key.path, "tokenizer");
    if (about_model && !model_ && !draft_.origins.given("tokenizer")) return;
    if (starts_with(key.path, "data") && !data_) return;
    if (key.path == "model.dropout" && common_dropout_is_unused()) return;
    // A resolved model has only the three probabilities, or the sizes, that these keys set.
    if ((key.path == "model.dropout" || key.path == "model.preset") &&
        draft_.origins.given(key.path)) {
      models::ModelOptions written = draft_.config.model;
      const json::Value all = config::write(written);
      const json::Value* const one = all.find(key.path.substr(6));
      if (one != nullptr) return add_key(key.path, *one, key.initial);
    }
    const json::Value* value = find_path(resolved_, key.path);
    if (value != nullptr && value->is_object()) return add_members(key.path, *value);
    add_key(key.path, value == nullptr ? json::Value() : *value, key.initial);
  }

  // True if nobody wrote model.dropout and all probabilities that it would set are others.
  [[nodiscard]] bool common_dropout_is_unused() const {
    const json::Value* const common = find_path(resolved_, "model.dropout");
    if (common == nullptr || draft_.origins.given("model.dropout")) return false;
    for (const char* path :
         {"model.embedding_dropout", "model.attention_dropout", "model.residual_dropout"}) {
      const json::Value* const own = find_path(resolved_, path);
      if (own == nullptr || own->is_null() || *own == *common) return false;
    }
    return true;
  }

  // optimizer.params and scheduler.params, one line per parameter.
  void add_members(const std::string& path, const json::Value& object) {
    for (const auto& [name, value] : object.members())
      add_key(json::join_path(path, name), value, "");
    for (const planner::AutoValue& automatic : draft_.automatic) {
      const std::size_t dot = automatic.path.rfind('.');
      if (dot == std::string::npos || automatic.path.substr(0, dot) != path) continue;
      if (object.find(automatic.path.substr(dot + 1)) == nullptr)
        add_key(automatic.path, json::Value(), "");
    }
  }

  void add_key(const std::string& path, json::Value value, const std::string& rule) {
    ExplainedKey out;
    out.path = path;
    const bool limitless = value.is_number() && value.as_integer() == kNoLimit && !rule.empty();
    out.text =
        value.is_null() ? (rule.empty() ? "not set" : rule) : (limitless ? rule : in_words(value));
    out.source = source_of(path);
    out.given = draft_.origins.given(path) || find_auto(path) != nullptr;
    if (const planner::AutoValue* automatic = find_auto(path)) {
      // No value yet, or one that is only known during the run.
      if (!automatic->resolved || (value.is_null() && rule.empty())) {
        value = json::Value::string("auto");
        out.text = "auto";
      }
      const std::string how = automatic->resolved ? automatic->how : "unresolved";
      out.source = fmt::format("{}, auto: {}", automatic->place.text(), how);
    }
    out.value = std::move(value);
    out_.keys.push_back(std::move(out));
  }

  [[nodiscard]] const planner::AutoValue* find_auto(std::string_view path) const {
    for (const planner::AutoValue& value : draft_.automatic) {
      if (value.path == path) return &value;
    }
    return nullptr;
  }

  [[nodiscard]] std::string source_of(const std::string& path) const {
    if (draft_.origins.given(path)) return draft_.origins.place(path).text();
    const std::string how = derivation(path);
    return how.empty() ? "default" : "derived: " + how;
  }

  // Returns how a value that was not written follows from others.
  [[nodiscard]] std::string derivation(const std::string& path) const {
    const bool batch = path == "train_batch_size" || path == "train_micro_batch_size_per_gpu" ||
                       path == "gradient_accumulation_steps";
    if (batch && draft_.recipe.global_batch > 0) return equation(draft_);
    if (path == "zero_optimization.stage" && draft_.layout.zero_stage == 1)
      return fmt::format("{} ranks and no zero_optimization block", draft_.layout.data_ranks);
    if (path == "run.dir") return fmt::format("the name of {}", name_of_file_);
    if (path == "run.threads_per_rank") return "cores / local ranks";
    if (path == "data.sequence_length" && has_model()) return "model.max_positions";
    if (path == "data.stride" && has_model() && draft_.config.data.pack)
      return "data.sequence_length";
    if (starts_with(path, "model") && has_model()) return model_derivation(path);
    if (starts_with(path, "model") && draft_.source) return source_derivation(path);
    return "";
  }

  // For a model that could not be made.
  [[nodiscard]] std::string source_derivation(const std::string& path) const {
    models::ModelOptions theirs = draft_.source->model;
    const json::Value all = json::Value::object({{"model", config::write(theirs)}});
    if (find_path(all, path) == nullptr) return "";
    return fmt::format("model.from {}", draft_.config.model->from.value_or(""));
  }

  [[nodiscard]] std::string model_derivation(const std::string& path) const {
    const auto& options = draft_.config.model;
    if (options->from && find_path(resolved_, path) != nullptr)
      return fmt::format("model.from {}", *options->from);
    const auto& derivations = draft_.model.resolved.derivations;
    const auto found = derivations.find(path.substr(path.find('.') + 1));
    return found == derivations.end() ? "" : found->second;
  }

  void add_accepted() {
    for (const config::TakenKey& key : draft_.accepted) {
      out_.accepted.push_back({key.path,
                               key.value,
                               in_words(key.value),
                               fmt::format("{}, {}", key.value.key_place.text(), key.why),
                               ""});
    }
  }

  // Adds "auto" values of keys that have no effect here.
  void add_idle_auto() {
    for (const planner::AutoValue& value : draft_.automatic) {
      const bool listed =
          std::any_of(out_.keys.begin(), out_.keys.end(), [&](const ExplainedKey& key) {
            return key.path == value.path;
          });
      if (listed) continue;
      out_.accepted.push_back({value.path,
                               json::Value::string("auto"),
                               "auto",
                               fmt::format("{}, {}", value.place.text(), value.how),
                               ""});
    }
  }

  // Explains sections that are disabled as a whole, without their keys.
  void add_idle_blocks() {
    if (!draft_.written.is_object()) return;
    for (const auto& [key, value] : draft_.written.members()) {
      const auto inside = [&](const ExplainedKey& one) {
        return one.path == key || starts_with(one.path, key);
      };
      const auto told = [&](const std::vector<ExplainedKey>& keys) {
        return std::any_of(keys.begin(), keys.end(), inside);
      };
      if (!value.is_object() || told(out_.keys) || told(out_.accepted) || told(out_.refused) ||
          draft_.problems.concern(key))
        continue;
      out_.accepted.push_back(
          {key, value, in_words(value), value.key_place.text() + ", switched off", ""});
    }
  }

  void add_problems() {
    if (draft_.failure) {
      try {
        std::rethrow_exception(draft_.failure);
      } catch (const Error& error) {
        out_.refused.push_back({"model.from", json::Value(), "", "", error.what()});
      }
    }
    for (const Problem& problem : draft_.problems.list())
      add_problem(problem);
  }

  void add_problem(const Problem& problem) {
    if (problem.kind == config::Problems::Kind::Unknown)
      return out_.unknown.push_back(line_of(problem));
    if (problem.kind == config::Problems::Kind::Missing)
      return out_.needed.push_back(line_of(problem));
    const auto it = std::find_if(out_.keys.begin(), out_.keys.end(), [&](const ExplainedKey& key) {
      return key.path == problem.path;
    });
    const json::Value* written = find_path(draft_.written, problem.path);
    if (it != out_.keys.end()) {
      // A refused value is shown as written, not as resolved.
      if (written != nullptr) {
        it->value = *written;
        it->text = in_words(*written);
        it->source = written->place.text();
        it->given = true;
      }
      it->refused += (it->refused.empty() ? "" : "; ") + reason_of(problem);
      return;
    }
    out_.refused.push_back({problem.path,
                            written == nullptr ? json::Value() : *written,
                            written == nullptr ? "" : in_words(*written),
                            problem.place.text(),
                            reason_of(problem)});
  }

  // A task has a formula whether or not a model is given.
  void add_formula(const FormulaOf& formula) {
    const planner::TrainConfig& config = draft_.config;
    if (!tasks::tasks().has(config.task.type)) return;
    config::Problems problems;
    const auto task = tasks::make_task(config.task, problems);
    if (task != nullptr && problems.empty()) out_.formula = formula(*task, config.data);
  }

  // Skips what the tables already contain.
  void add_notes() {
    const std::vector<std::string>& notes = draft_.notes;
    const auto first = notes.begin() + static_cast<std::ptrdiff_t>(draft_.accepted.size());
    std::copy_if(first, notes.end(), std::back_inserter(out_.notes), [](const std::string& note) {
      return note.find(" is \"auto\": ") == std::string::npos;
    });
    if (!model_) out_.notes.emplace_back("no model is given: what depends on its size stays open");
  }

  std::string name_of_file_;
  bool model_ = false, data_ = false;
  planner::Draft draft_;
  json::Value resolved_;
  Explanation out_;
};

std::string table(const std::vector<ExplainedKey>& keys) {
  std::size_t path = 0, text = 0;
  constexpr std::size_t kWide = 32;  // longer values widen only their own line
  for (const ExplainedKey& key : keys) {
    path = std::max(path, key.path.size());
    text = std::max(text, std::min(key.text.size(), kWide));
  }
  std::string out;
  for (const ExplainedKey& key : keys) {
    std::string line =
        fmt::format("  {:<{}}  {:<{}}  {}", key.path, path, key.text, text, key.source);
    if (!key.refused.empty()) line += fmt::format("  refused: {}", key.refused);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string titled(const std::string& title, const std::vector<ExplainedKey>& keys) {
  return keys.empty() ? "" : title + "\n" + table(keys);
}

std::string list(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string out = title + "\n";
  for (const std::string& line : lines)
    out += "  " + line + "\n";
  return out;
}

json::Value keys_json(const std::vector<ExplainedKey>& keys) {
  json::Value out = json::Value::array();
  for (const ExplainedKey& key : keys) {
    json::Value entry = json::Value::object({{"key", json::Value::string(key.path)},
                                             {"value", key.value},
                                             {"source", json::Value::string(key.source)}});
    if (!key.refused.empty()) entry["refused"] = json::Value::string(key.refused);
    out.push_back(std::move(entry));
  }
  return out;
}

json::Value lines_json(const std::vector<std::string>& lines) {
  json::Value out = json::Value::array();
  for (const std::string& line : lines)
    out.push_back(json::Value::string(line));
  return out;
}

}  // namespace

bool Explanation::trains() const {
  return refused.empty() && unknown.empty() &&
         std::none_of(keys.begin(), keys.end(), [](const ExplainedKey& key) {
           return !key.refused.empty();
         });
}

Explanation explain_config(const json::Value& source,
                           std::optional<int> ranks,
                           const std::string& name_of_file,
                           const FormulaOf& formula) {
  return Explainer(source, ranks, name_of_file).explain(formula);
}

std::string as_text(const Explanation& explanation) {
  std::vector<ExplainedKey> refused = explanation.refused, given, others;
  for (const ExplainedKey& key : explanation.keys)
    (!key.refused.empty() ? refused : key.given ? given : others).push_back(key);
  std::string out = explanation.ranks_text + "\n";
  out += titled("train would refuse", refused);
  out += list("train needs these values", explanation.needed);
  out += titled("set", given);
  out += titled("accepted, without a meaning here", explanation.accepted);
  out += titled("not set", others);
  out += list("notes", explanation.notes);
  out += list("formula", explanation.formula);
  return out;
}

json::Value as_json(const Explanation& explanation) {
  json::Value out = json::Value::object();
  out["ranks"] = json::Value::integer(explanation.ranks);
  out["ranks_source"] = json::Value::string(explanation.ranks_text);
  out["keys"] = keys_json(explanation.keys);
  out["accepted"] = keys_json(explanation.accepted);
  out["refused"] = keys_json(explanation.refused);
  out["needed"] = lines_json(explanation.needed);
  out["unknown"] = lines_json(explanation.unknown);
  out["notes"] = lines_json(explanation.notes);
  out["formula"] = lines_json(explanation.formula);
  out["trains"] = json::Value::boolean(explanation.trains());
  return out;
}

}  // namespace tessera::report
