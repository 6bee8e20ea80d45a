// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/prompt_file.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// The "prompt" of a line.
std::string prompt_of(const std::string& line, const std::string& place) {
  const json::Value value = json::parse_strict(line, place);
  const json::Value* prompt = value.is_object() ? value.find("prompt") : nullptr;
  TESSERA_REQUIRE(prompt != nullptr && prompt->is_string(),
                  Data,
                  place + " has no text \"prompt\"",
                  "expected one object {\"prompt\": \"...\"} in each line");
  return prompt->as_string();
}

/// Returns the number of prompts with texts in the file. An incomplete last line is removed.
std::size_t already_made(const std::string& path, const std::vector<std::string>& prompts) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return 0;
  const std::string held = files::read(path);
  std::size_t begin = 0, count = 0;
  for (std::size_t end = held.find('\n'); end != std::string::npos; end = held.find('\n', begin)) {
    const std::string place = fmt::format("{}:{}", path, count + 1);
    const std::string prompt = prompt_of(held.substr(begin, end - begin), place);
    TESSERA_REQUIRE(count < prompts.size() && prompts[count] == prompt,
                    Data,
                    place + " is not the text of the prompt in that place",
                    "choose another --out, or remove the file");
    begin = end + 1;
    ++count;
  }
  if (begin < held.size()) fs::resize_file(path, begin);
  return count;
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

json::Value line_of(const std::string& prompt) {
  json::Value out = json::Value::object();
  out["prompt"] = json::Value::string(prompt);
  return out;
}

json::Value line_of(const std::string& prompt, const std::vector<engine::Generated>& made) {
  json::Value out = line_of(prompt);
  if (made.size() == 1) {
    json::Value one = told(made.front());
    for (auto& [name, value] : one.members())
      out[name] = std::move(value);
    return out;
  }
  for (const engine::Generated& one : made)
    out["samples"].push_back(told(one));
  return out;
}

json::Value line_of(const std::string& prompt, const std::vector<engine::Generator::Beam>& beams) {
  json::Value out = line_of(prompt);
  for (const auto& beam : beams) {
    json::Value made = told(beam.made);
    made["score"] = json::Value::number(beam.score);
    out["beams"].push_back(std::move(made));
  }
  return out;
}

/// The file that receives the lines.
class TextFile {
 public:
  TextFile(const PromptFile& file, bool is_leader)
      : file_(file), is_leader_(is_leader), written_(file.made) {
    if (!is_leader_) return;
    out_.open(file.out, std::ios::binary | std::ios::app);
    TESSERA_REQUIRE(out_.good(), Io, "cannot write " + file.out, "choose another --out");
  }

  [[nodiscard]] std::size_t written() const { return written_; }

  void write(const json::Value& line) {
    ++written_;
    if (!is_leader_) return;
    out_ << line.dump() << '\n' << std::flush;
    TESSERA_REQUIRE(out_.good(), Io, "cannot write " + file_.out, "is the disk full?");
    if (!file_.quiet)
      terminal_.live(fmt::format("{} of {} prompts", written_, file_.prompts.size()));
  }

  void finish() {
    if (!is_leader_ || file_.quiet) return;
    terminal_.line(fmt::format(
        "{} texts in {}{}",
        file_.prompts.size() * static_cast<std::size_t>(file_.samples),
        file_.out,
        file_.made > 0 ? fmt::format(", those of {} prompts from before", file_.made) : ""));
  }

 private:
  const PromptFile& file_;
  bool is_leader_;
  std::size_t written_;
  std::ofstream out_;
  Terminal terminal_;
};

/// Texts end in any order; lines are written in the order of the prompts.
void draw(engine::Generator& generator,
          const engine::GenerateOptions& options,
          const PromptFile& file,
          TextFile& out) {
  const auto samples = static_cast<std::size_t>(file.samples);
  std::vector<engine::Generator::Asked> asked;
  for (std::size_t prompt = file.made; prompt < file.prompts.size(); ++prompt) {
    for (std::size_t i = 0; i < samples; ++i)
      asked.push_back({generator.encode(file.prompts[prompt]), options.seed + i});
  }
  struct Waiting {
    std::vector<engine::Generated> texts;
    std::size_t missing;
  };
  std::map<std::size_t, Waiting> waiting;  // by prompt
  generator.run_prompts(
      asked, options, file.at_once, [&](std::size_t number, engine::Generated made) {
        Waiting& mine =
            waiting.try_emplace(file.made + number / samples, Waiting{{}, samples}).first->second;
        mine.texts.resize(samples);
        mine.texts[number % samples] = std::move(made);
        --mine.missing;
        for (auto next = waiting.begin();
             next != waiting.end() && next->first == out.written() && next->second.missing == 0;
             next = waiting.erase(next))
          out.write(line_of(file.prompts[next->first], next->second.texts));
      });
}

}  // namespace

std::vector<std::string> read_prompts(const std::string& path) {
  std::vector<std::string> out;
  std::size_t number = 0;
  for (const std::string& line : text::split(files::read(path), '\n')) {
    ++number;
    if (!text::trim(line).empty())
      out.push_back(prompt_of(line, fmt::format("{}:{}", path, number)));
  }
  TESSERA_REQUIRE(!out.empty(), Data, path + " holds no prompt", "write one JSON object a line");
  return out;
}

PromptFile open_prompt_file(const std::string& in, const std::string& out) {
  PromptFile file;
  file.out = out;
  file.prompts = read_prompts(in);
  file.made = already_made(out, file.prompts);
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
    for (std::size_t i = file.made; i < file.prompts.size(); ++i) {
      const std::string& prompt = file.prompts[i];
      out.write(
          line_of(prompt, generator.run_beams(generator.encode(prompt), options, file.returned)));
    }
  }
  out.finish();
}

}  // namespace tessera::cli
