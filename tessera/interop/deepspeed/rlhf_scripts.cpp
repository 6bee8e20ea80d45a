// SPDX-License-Identifier: Apache-2.0
// DeepSpeed-Chat's e2e_rlhf.py, which starts a shell script for each step. The commands in these
// scripts are read, with the variables that e2e_rlhf.py gives them; nothing is executed. The three
// configurations become one file for `tessera rlhf`.
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/foreign_command.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using Setting = ForeignFlags::Setting;
using Variables = std::map<std::string, std::string>;

bool is_name(char c) {
  return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

// Replaces $NAME, ${NAME} and $1; a variable that was never set is empty, as in a shell. Lines that
// double a variable again and again would need any amount of memory.
std::string substituted(std::string_view text, const Variables& variables) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$' || i + 1 >= text.size()) {
      if (text[i] != '"' && text[i] != '\'') out += text[i];
      continue;
    }
    std::size_t begin = i + 1;
    const bool braces = text[begin] == '{';
    if (braces) ++begin;
    std::size_t end = begin;
    while (end < text.size() && is_name(text[end]))
      ++end;
    const auto found = variables.find(std::string(text.substr(begin, end - begin)));
    if (found != variables.end()) out += found->second;
    TESSERA_REQUIRE(out.size() <= kMostBytes,
                    Config,
                    "a line of a shell script is too long when its variables are replaced",
                    "run the steps one by one");
    i = braces && end < text.size() && text[end] == '}' ? end : end - 1;
  }
  return out;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> out;
  for (const std::string& word : text::split(line, ' ')) {
    if (!word.empty()) out.push_back(word);
  }
  return out;
}

// Lines of a script, with those that end with a backslash joined.
std::vector<std::string> joined_lines(const std::string& script) {
  std::vector<std::string> out;
  std::string open;
  for (std::string line : text::split(script, '\n')) {
    line = std::string(text::trim(line));
    const bool goes_on = line.ends_with('\\');
    if (goes_on) line.pop_back();
    open += line + " ";
    if (goes_on) continue;
    out.push_back(std::string(text::trim(open)));
    open.clear();
  }
  if (!open.empty()) out.push_back(open);
  return out;
}

// The words of the command `deepspeed ... main.py ...` in a script. Assignments are followed, and
// those between "if [ "$X" == "" ]; then" and "fi" where the variable is empty.
std::vector<std::string> command_in(const fs::path& script, Variables variables) {
  bool skips = false;
  for (const std::string& line : joined_lines(files::read(script))) {
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("if ")) {
      const std::size_t dollar = line.find('$');
      std::size_t end = dollar == line.npos ? line.npos : dollar + 1;
      while (end < line.size() && is_name(line[end]))
        ++end;
      const auto found = dollar == line.npos
                             ? variables.end()
                             : variables.find(line.substr(dollar + 1, end - dollar - 1));
      skips = found != variables.end() && !found->second.empty();
      continue;
    }
    if (line == "fi") skips = false;
    if (skips || line == "fi" || line == "then") continue;
    const std::size_t equals = line.find('=');
    std::size_t name = 0;
    while (name < line.size() && is_name(line[name]))
      ++name;
    if (equals != line.npos && name == equals && equals > 0) {
      variables[line.substr(0, equals)] = substituted(line.substr(equals + 1), variables);
      continue;
    }
    std::string text = substituted(line, variables);
    text = text.substr(0, text.find("&>"));
    text = text.substr(0, text.find(" > "));
    std::vector<std::string> words = words_of(text);
    while (!words.empty() && words.front().find('=') != std::string::npos)
      words.erase(words.begin());
    if (!words.empty() && words.front() == "deepspeed") return words;
  }
  return {};
}

struct Step {
  const char* section;
  const char* folder;
  fs::path script;
  Variables arguments;
};

// "facebook/opt-1.3b" and "1.3b" are one model.
std::string size_of_model(std::string name) {
  constexpr std::string_view kPrefix = "facebook/opt-";
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  return name;
}

// The keys that follow from earlier steps, which `tessera rlhf` sets.
void drop_earlier(json::Value& source) {
  const auto drop = [&](std::vector<std::string> path) {
    json::Value* at = &source;
    for (std::size_t i = 0; i + 1 < path.size() && at != nullptr; ++i)
      at = at->is_object() ? at->find(path[i]) : nullptr;
    if (at != nullptr && at->is_object())
      std::erase_if(at->members(), [&](const auto& one) { return one.first == path.back(); });
  };
  drop({"model", "from"});
  drop({"rl", "rewards"});
  drop({"rl", "critic", "from"});
  drop({"run", "dir"});
}

// The configuration of a step; null, with a problem, if its script cannot be read.
json::Value source_of(Meaning& meaning, const Step& step, const fs::path& root) {
  std::error_code ignored;
  const fs::path script = root / step.folder / step.script;
  if (!fs::is_regular_file(script, ignored)) {
    meaning.refuse(
        fmt::format("{} starts {}, which does not exist", meaning.script, script.string()),
        "run the three steps with one file: tessera rlhf FILE.json "
        "(examples/rlhf/chat.json)");
    return {};
  }
  std::vector<std::string> words = command_in(script, step.arguments);
  for (std::string& word : words) {
    const fs::path name = fs::path(word).filename();
    if (name == "main.py") word = (root / step.folder / "main.py").string();
    if (name != "e2e_rlhf.py" && name != "train.py") continue;
    meaning.refuse(fmt::format("{} starts {} again", script.string(), name.string()),
                   "run the steps one by one");
    return {};
  }
  if (words.empty()) {
    meaning.refuse(fmt::format("{}: no line begins with deepspeed", script.string()),
                   "run the steps one by one");
    return {};
  }
  try {
    ForeignCommand command = read_foreign_command(words);
    if (command.ranks) meaning.ranks = command.ranks;
    if (!command.ranks_note.empty()) command.notes.push_back(command.ranks_note);
    for (std::string& note : command.notes)
      meaning.note(fmt::format("{}: {}", step.section, note));
    if (std::string_view(step.section) == "rl") drop_earlier(command.source);
    if (json::Value* const run = command.source.find("run"); run != nullptr && run->is_object())
      std::erase_if(run->members(), [](const auto& one) { return one.first == "dir"; });
    return std::move(command.source);
  } catch (const Error& error) {
    meaning.refuse(fmt::format("{}: {}", script.string(), error.what()), error.fix());
    return {};
  }
}

void end_to_end(Meaning& meaning) {
  const fs::path root = fs::path(meaning.script).parent_path();
  const std::string deployment = meaning.text("@deployment"),
                    actor = size_of_model(meaning.text("@actor")),
                    reward = size_of_model(meaning.text("@reward")),
                    output = meaning.text("@output");
  // The scripts of older versions are not in a folder of their model.
  std::error_code ignored;
  const bool older =
      !fs::exists(root / "training/step1_supervised_finetuning/training_scripts/opt", ignored);
  const fs::path scripts = fs::path("training_scripts") / (older ? "" : "opt") / deployment;
  const std::string actor_stage = meaning.text("@actor_stage"),
                    reward_stage = meaning.text("@reward_stage");
  // The third step begins from what the others made; to read its command, from their models.
  const Step steps[] = {{"sft",
                         "training/step1_supervised_finetuning",
                         scripts / fmt::format("run_{}.sh", actor),
                         {{"1", output + "/actor-models/" + actor}, {"2", actor_stage}}},
                        {"reward",
                         "training/step2_reward_model_finetuning",
                         scripts / fmt::format("run_{}.sh", reward),
                         {{"1", output + "/reward-models/" + reward}, {"2", reward_stage}}},
                        {"rl",
                         "training/step3_rlhf_finetuning",
                         scripts / fmt::format("run_{}.sh", actor),
                         {{"1", "facebook/opt-" + actor},
                          {"2", "facebook/opt-" + reward},
                          {"3", actor_stage},
                          {"4", reward_stage},
                          {"5", output + "/step3-models/" + actor}}}};
  json::Value all = json::Value::object({{"dir", json::Value::string(output)}});
  for (const Step& step : steps) {
    json::Value source = source_of(meaning, step, root);
    if (source.is_null()) return;
    all[step.section] = std::move(source);
  }
  const std::string content = all.dump(2) + "\n";
  const fs::path folder = files::cache_dir() / "parts";
  const fs::path file =
      folder / fmt::format("rlhf-{:016x}.json", XXH3_64bits(content.data(), content.size()));
  fs::create_directories(folder, ignored);
  files::write_atomic(file, content);
  meaning.command = "rlhf";
  meaning.words = {file.string()};
  for (const std::string& step : meaning.texts("@step"))
    meaning.words.insert(meaning.words.end(), {"--step", step});
  if (meaning.ranks)
    meaning.words.insert(meaning.words.end(), {"-n", std::to_string(*meaning.ranks)});
}

const bool kPrograms = add_programs({{.title = "DeepSpeed-Chat's e2e_rlhf.py",
                                      .names = {"e2e_rlhf.py"},
                                      .tables = {"deepspeed/e2e"},
                                      .rules = end_to_end},
                                     {.title = "DeepSpeed-Chat's train.py",
                                      .names = {"train.py"},
                                      .folders = {"DeepSpeed-Chat"},
                                      .marks = {"deployment_type", "actor_model", "reward_model"},
                                      .tables = {"deepspeed/e2e"},
                                      .rules = end_to_end}});

}  // namespace
}  // namespace tessera::interop
