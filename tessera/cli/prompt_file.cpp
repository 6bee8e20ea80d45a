// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/prompt_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/bounded_file.h"
#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/cli/prediction_lines.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// A line of the file.
struct Asked {
  std::string prompt;
  int adapter = -1;
  json::Value others;  ///< an object of the line's other members
};

/// The number of the adapter that a line names; `names`: those that exist.
int adapter_of(const json::Value& line,
               const std::vector<std::string>& names,
               const std::string& place) {
  const json::Value* const named = line.find("adapter");
  if (named == nullptr) return names.empty() ? -1 : 0;
  if (named->is_null()) return -1;
  const bool text = named->is_string();
  const auto found = text ? std::find(names.begin(), names.end(), named->as_string()) : names.end();
  TESSERA_REQUIRE(found != names.end(),
                  Data,
                  fmt::format("{} names the adapter {}, which is not loaded", place, named->dump()),
                  names.empty() ? "add --adapter NAME=PATH"
                                : fmt::format("the adapters are {}; null is the base",
                                              text::join_some(names, ", ")));
  return static_cast<int>(found - names.begin());
}

Asked asked_of(const std::string& line,
               const std::vector<std::string>& names,
               const std::string& place) {
  const json::Value value = json::parse_strict(line, place);
  const json::Value* prompt = value.is_object() ? value.find("prompt") : nullptr;
  TESSERA_REQUIRE(prompt != nullptr && prompt->is_string(),
                  Data,
                  place + " has no text \"prompt\"",
                  "expected one object {\"prompt\": \"...\"} in each line");
  Asked out{prompt->as_string(), adapter_of(value, names, place), json::Value::object()};
  for (const auto& [name, member] : value.members()) {
    if (name != "prompt" && (name != "adapter" || names.empty())) out.others[name] = member;
  }
  return out;
}

/// The members that follow a prompt's own in its line, after those that were made.
json::Value with_others(json::Value line, const json::Value& others) {
  add_members_of(line, others);
  return line;
}

/// True if the line of a text ends with the other members of its prompt's line.
bool ends_with_others(const json::Value& line, const json::Value& others) {
  const auto& members = line.members();
  const std::ptrdiff_t own = std::ssize(members) - std::ssize(others.members());
  if (own < 0) return false;
  return with_others(json::Value::object({members.begin(), members.begin() + own}), others) == line;
}

/// Returns the prompts with texts in the file, without an incomplete last line and blank lines at
/// the end.
MadeLines already_made(const PromptFile& file) {
  std::error_code ignored;
  if (!fs::exists(file.out, ignored)) return {};
  const std::string held = files::read(file.out);
  std::size_t begin = 0, count = 0, kept = 0;
  for (std::size_t end = held.find('\n'); end != std::string::npos; end = held.find('\n', begin)) {
    const std::string line = held.substr(begin, end - begin);
    if (text::trim(line).empty()) {
      begin = end + 1;
      continue;
    }
    const std::string place = fmt::format("{}:{}", file.out, count + 1);
    const Asked made = asked_of(line, file.adapter_names, place);
    TESSERA_REQUIRE(count < file.prompts.size() && file.prompts[count] == made.prompt &&
                        file.adapters[count] == made.adapter &&
                        ends_with_others(json::parse_strict(line, place), file.others[count]),
                    Data,
                    place + " is not the text of the prompt in that place",
                    "choose another --out, or remove the file");
    begin = kept = end + 1;
    ++count;
  }
  return {count, kept};
}

json::Value told(const engine::Generated& made) {
  json::Value out = json::Value::object();
  out["text"] = json::Value::string(text::replace_invalid_utf8(made.text));
  out["tokens"] = json::Value::array({});
  for (const std::int32_t token : made.tokens)
    out["tokens"].push_back(json::Value::integer(token));
  out["ended"] = json::Value::boolean(made.ended);
  return out;
}

/// The line of a prompt, without texts.
json::Value line_of(const PromptFile& file, std::size_t number) {
  json::Value out = json::Value::object();
  out["prompt"] = json::Value::string(file.prompts[number]);
  if (file.adapter_names.empty()) return out;
  const int adapter = file.adapters[number];
  out["adapter"] = adapter < 0
                       ? json::Value()
                       : json::Value::string(file.adapter_names[static_cast<std::size_t>(adapter)]);
  return out;
}

json::Value line_of(const PromptFile& file,
                    std::size_t number,
                    const std::vector<engine::Generated>& made) {
  json::Value out = line_of(file, number);
  if (made.size() == 1) {
    json::Value one = told(made.front());
    for (auto& [name, value] : one.members())
      out[name] = std::move(value);
    return with_others(std::move(out), file.others[number]);
  }
  for (const engine::Generated& one : made)
    out["samples"].push_back(told(one));
  return with_others(std::move(out), file.others[number]);
}

json::Value line_of(const PromptFile& file,
                    std::size_t number,
                    const std::vector<engine::Generator::Beam>& beams) {
  json::Value out = line_of(file, number);
  for (const auto& beam : beams) {
    json::Value made = told(beam.made);
    made["score"] = json::Value::number(beam.score);
    out["beams"].push_back(std::move(made));
  }
  return with_others(std::move(out), file.others[number]);
}

/// The file that receives the lines.
class TextFile {
 public:
  TextFile(const PromptFile& file, bool is_leader)
      : file_(file), is_leader_(is_leader), written_(file.made.count) {
    if (!is_leader_) return;
    out_.open(file.out, file.made.bytes);
  }

  [[nodiscard]] std::size_t written() const { return written_; }

  /// `tokens`: number of generated tokens in the line.
  void write(const json::Value& line, std::size_t tokens) {
    const std::size_t number = written_++;
    tokens_ += tokens;
    if (!is_leader_) return;
    append(blank_lines(number) + line.dump() + '\n');
    if (!file_.quiet) terminal_.live(progress());
  }

  void finish() {
    if (!is_leader_) return;
    append(blank_lines(file_.prompts.size()));
    file_.progress.finish();
    if (file_.quiet) return;
    terminal_.line(fmt::format(
        "{} texts in {}, {:.1f} tokens/s{}",
        file_.prompts.size() * static_cast<std::size_t>(file_.samples),
        file_.out,
        tokens_per_s(),
        file_.made.count > 0 ? fmt::format(", those of {} prompts from before", file_.made.count)
                             : ""));
  }

 private:
  const PromptFile& file_;
  bool is_leader_, begun_ = false;
  std::size_t written_, tokens_ = 0;
  double start_ = now_s();
  OutputFile out_;
  Terminal terminal_;

  void append(const std::string& lines) {
    if (!std::exchange(begun_, true)) {
      out_.replace();
      file_.progress.begin();
    }
    out_.write(lines);
    out_.flush();
  }
  /// The blank lines before the prompt of this number.
  [[nodiscard]] std::string blank_lines(std::size_t number) const {
    return std::string(file_.blank_lines[number], '\n');
  }
  [[nodiscard]] double tokens_per_s() const {
    return static_cast<double>(tokens_) / std::max(now_s() - start_, 1e-9);
  }
  /// The rest is estimated from the prompts that this run has completed.
  [[nodiscard]] std::string progress() const {
    const auto done = static_cast<double>(written_ - file_.made.count),
               missing = static_cast<double>(file_.prompts.size() - written_);
    return fmt::format("{} of {} prompts, {:.1f} tokens/s, {} left",
                       written_,
                       file_.prompts.size(),
                       tokens_per_s(),
                       text::duration((now_s() - start_) / done * missing));
  }
};

/// Texts end in any order; lines are written in the order of the prompts.
void draw(engine::Generator& generator,
          const engine::GenerateOptions& options,
          const PromptFile& file,
          TextFile& out) {
  const auto samples = static_cast<std::size_t>(file.samples);
  std::vector<engine::Generator::Asked> asked;
  for (std::size_t prompt = file.made.count; prompt < file.prompts.size(); ++prompt) {
    for (std::size_t i = 0; i < samples; ++i)
      asked.push_back(
          {generator.encode(file.prompts[prompt]), options.seed + i, file.adapters[prompt]});
  }
  struct Waiting {
    std::vector<engine::Generated> texts;
    std::size_t missing;
  };
  std::map<std::size_t, Waiting> waiting;  // by prompt
  generator.run_prompts(
      asked, options, file.at_once, [&](std::size_t number, engine::Generated made) {
        Waiting& mine =
            waiting.try_emplace(file.made.count + number / samples, Waiting{{}, samples})
                .first->second;
        mine.texts.resize(samples);
        mine.texts[number % samples] = std::move(made);
        --mine.missing;
        for (auto next = waiting.begin();
             next != waiting.end() && next->first == out.written() && next->second.missing == 0;
             next = waiting.erase(next)) {
          std::size_t tokens = 0;
          for (const engine::Generated& text : next->second.texts)
            tokens += text.tokens.size();
          out.write(line_of(file, next->first, next->second.texts), tokens);
        }
      });
}

}  // namespace

namespace {

/// `blank_lines`: receives their numbers, as in PromptFile.
std::vector<Asked> read_asked(const std::string& path,
                              const std::vector<std::string>& names,
                              std::vector<std::size_t>* blank_lines = nullptr) {
  std::vector<Asked> out;
  std::vector<std::size_t> blank = {0};
  std::size_t number = 0;
  std::vector<std::string> lines = text::split(files::read_within(path), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) {
    ++number;
    if (text::trim(line).empty()) {
      ++blank.back();
      continue;
    }
    out.push_back(asked_of(line, names, fmt::format("{}:{}", path, number)));
    blank.push_back(0);
  }
  if (blank_lines != nullptr) *blank_lines = std::move(blank);
  TESSERA_REQUIRE(!out.empty(), Data, path + " holds no prompt", "write one JSON object a line");
  return out;
}

}  // namespace

std::vector<std::string> read_prompts(const std::string& path) {
  std::vector<std::string> out;
  for (Asked& asked : read_asked(path, {}))
    out.push_back(std::move(asked.prompt));
  return out;
}

PromptFile open_prompt_file(const std::string& in,
                            const std::string& out,
                            std::vector<std::string> adapter_names) {
  require_other_file(in, out);
  PromptFile file;
  file.out = out;
  file.adapter_names = std::move(adapter_names);
  for (Asked& asked : read_asked(in, file.adapter_names, &file.blank_lines)) {
    file.prompts.push_back(std::move(asked.prompt));
    file.adapters.push_back(asked.adapter);
    file.others.push_back(std::move(asked.others));
  }
  file.made = already_made(file);
  return file;
}

void texts_of_file(engine::Generator& generator,
                   const engine::GenerateOptions& options,
                   const PromptFile& file,
                   bool is_leader) {
  TextFile out(file, is_leader);
  if (options.beams == 1) {
    draw(generator, options, file, out);
  } else {
    for (std::size_t i = file.made.count; i < file.prompts.size(); ++i) {
      engine::GenerateOptions own = options;
      own.adapter = file.adapters[i];
      const auto beams = generator.run_beams(generator.encode(file.prompts[i]), own, file.returned);
      std::size_t tokens = 0;
      for (const auto& beam : beams)
        tokens += beam.made.tokens.size();
      out.write(line_of(file, i, beams), tokens);
    }
  }
  out.finish();
}

}  // namespace tessera::cli
