// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/prompt_file.h"

#include <filesystem>
#include <fstream>
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

/// The number of prompts with texts in the file. An incomplete last line is removed.
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

json::Value one_line(engine::Generator& generator,
                     const engine::GenerateOptions& options,
                     const std::string& prompt,
                     int returned) {
  std::vector<std::int32_t> ids = generator.encode(prompt);
  json::Value out = json::Value::object();
  out["prompt"] = json::Value::string(prompt);
  if (options.beams == 1) {
    json::Value made = told(generator.run_ids(std::move(ids), options, {}));
    for (auto& [name, value] : made.members())
      out[name] = std::move(value);
    return out;
  }
  for (const auto& beam : generator.run_beams(ids, options, returned)) {
    json::Value made = told(beam.made);
    made["score"] = json::Value::number(beam.score);
    out["beams"].push_back(std::move(made));
  }
  return out;
}

}  // namespace

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
  const std::vector<std::string>& prompts = file.prompts;
  std::ofstream out;
  if (is_leader) {
    out.open(file.out, std::ios::binary | std::ios::app);
    TESSERA_REQUIRE(out.good(), Io, "cannot write " + file.out, "choose another --out");
  }
  Terminal terminal;
  for (std::size_t i = file.made; i < prompts.size(); ++i) {
    const json::Value made = one_line(generator, options, prompts[i], file.returned);
    if (!is_leader) continue;
    out << made.dump() << '\n' << std::flush;
    TESSERA_REQUIRE(out.good(), Io, "cannot write " + file.out, "is the disk full?");
    if (!file.quiet) terminal.live(fmt::format("{} of {} prompts", i + 1, prompts.size()));
  }
  if (is_leader && !file.quiet) {
    terminal.line(
        fmt::format("{} texts in {}{}",
                    prompts.size(),
                    file.out,
                    file.made > 0 ? fmt::format(", {} of them from before", file.made) : ""));
  }
}

}  // namespace tessera::cli
