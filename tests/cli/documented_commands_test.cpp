// SPDX-License-Identifier: Apache-2.0
// Every command that a page shows, in blocks, tables and sentences, is one that the program
// accepts.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/program.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/planner/config_paths.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct Shown {
  std::string where;  ///< "docs/tasks.md:31"
  std::string line;   ///< from "tessera" to the end of the code
  bool whole = true;  ///< false: in a sentence, which may leave out what the command is about
};

std::vector<fs::path> pages() {
  const fs::path top = tessera::test::source_dir();
  std::vector<fs::path> out = {top / "README.md", top / "CONTRIBUTING.md"};
  for (const auto& entry : fs::recursive_directory_iterator(top / "docs")) {
    // Decisions describe the program as it was when they were made.
    const bool record = entry.path().string().find("/docs/decisions/") != std::string::npos;
    if (entry.path().extension() == ".md" && !record) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// The position behind "tessera " or "bin/tessera " at the beginning of a command, or npos.
std::size_t command_in(const std::string& code) {
  static const std::regex pattern(R"((^|[ (])(\S*bin/)?tessera (?=[a-z-]))");
  std::smatch match;
  if (!std::regex_search(code, match, pattern)) return std::string::npos;
  return static_cast<std::size_t>(match.position(0) + match.length(0));
}

void add_command(std::vector<Shown>& out,
                 const std::string& where,
                 const std::string& code,
                 bool whole) {
  const std::size_t begin = command_in(code);
  if (begin != std::string::npos) out.push_back({where, code.substr(begin), whole});
}

std::vector<Shown> commands_of(const fs::path& page) {
  const fs::path name = fs::relative(page, tessera::test::source_dir());
  static const std::regex span("`([^`]+)`");
  std::vector<Shown> out;
  std::string fence, joined;
  int number = 0;
  for (const std::string& line : text::split(files::read(page), '\n')) {
    const std::string where = name.string() + ":" + std::to_string(++number);
    if (line.starts_with("```")) {
      fence = fence.empty() ? line : "";
      continue;
    }
    if (!fence.empty()) {
      if (fence == "```cpp" || fence == "```json") continue;
      joined += line;
      if (joined.ends_with('\\')) {
        joined.back() = ' ';
        continue;
      }
      add_command(out, where, joined, /*whole=*/true);
      joined.clear();
      continue;
    }
    for (std::sregex_iterator it(line.begin(), line.end(), span), end; it != end; ++it)
      add_command(out, where, (*it)[1].str(), /*whole=*/false);
  }
  return out;
}

/// The words of a line up to the end of its command, as a shell takes them.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> out;
  std::string word;
  bool has_word = false;
  char quote = '\0';
  for (std::size_t i = 0; i <= line.size(); ++i) {
    const char c = i < line.size() ? line[i] : ' ';
    if (quote != '\0') {
      if (c == quote)
        quote = '\0';
      else
        word += c;
      continue;
    }
    if (c == '"' || c == '\'') {
      quote = c;
      has_word = true;
    } else if (c == ' ') {
      if (has_word) out.push_back(word);
      word.clear();
      has_word = false;
    } else if ((c == '#' && !has_word) || c == '|' || c == '>' || c == ';' || c == '&' ||
               c == '<') {
      break;
    } else if (c == '\\' && i + 1 < line.size()) {
      if (line[++i] == '|') break;  // a pipe in a table
      word += line[i];
      has_word = true;
    } else {
      word += c;
      has_word = true;
    }
  }
  return out;
}

/// The words of a command with what pages write for their readers made concrete: parts in brackets
/// are taken, an ellipsis is left out, and a letter that stands for a number is a number.
std::vector<std::string> concrete(std::string line) {
  static const std::regex value_brackets(R"(\[[0-9, ]+\])");
  if (!std::regex_search(line, value_brackets) && line.find('{') == std::string::npos)
    std::erase_if(line, [](char c) { return c == '[' || c == ']'; });
  std::vector<std::string> out;
  for (std::string& word : words_of(line)) {
    if (word == "..." || word == "…") continue;
    if (word == "COMMAND") return {};  // of another program
    const bool number = word == "STEP" || word == "N" || word == "M" || word == "RANKS";
    out.push_back(number ? "2" : word);
  }
  return out;
}

std::vector<Shown> shown_commands() {
  std::vector<Shown> out;
  for (const fs::path& page : pages()) {
    for (Shown& shown : commands_of(page)) {
      const std::vector<std::string> words = concrete(shown.line);
      // Prose between backquotes, as in `tessera` warns, is not a command; a misspelt one in a
      // block is.
      if (!words.empty() && (shown.whole || commands().has(words.front())))
        out.push_back(std::move(shown));
    }
  }
  return out;
}

TEST(DocumentedCommands, AreFoundInBlocksTablesAndSentences) {
  const std::vector<Shown> all = shown_commands();

  EXPECT_GT(all.size(), 120U);
  std::set<std::string> names;
  for (const Shown& shown : all)
    names.insert(concrete(shown.line).front());
  EXPECT_THAT(names,
              testing::IsSupersetOf({"train", "predict", "eval", "convert", "init", "plan"}));
}

TEST(DocumentedCommands, AreThoseThatTheProgramAccepts) {
  const CheckingWords only_words;
  for (const Shown& shown : shown_commands()) {
    SCOPED_TRACE(shown.where + ": tessera " + shown.line);
    const Outcome o = run_program(concrete(shown.line));
    const bool incomplete = o.err.find(" is required") != std::string::npos ||
                            o.err.find(" missing") != std::string::npos;
    if (!shown.whole && incomplete) continue;
    EXPECT_EQ(o.code, 0) << o.err;
  }
}

TEST(DocumentedCommands, SetKeysThatExist) {
  std::vector<std::string> known = planner::config_paths();
  int checked = 0;
  for (const Shown& shown : shown_commands()) {
    const std::vector<std::string> words = concrete(shown.line);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] != "--set") continue;
      const std::string key = words[i + 1].substr(0, words[i + 1].find('='));
      const bool exists = std::any_of(known.begin(), known.end(), [&](const std::string& path) {
        return path == key || key.starts_with(path + ".") || path.starts_with(key + ".");
      });
      EXPECT_TRUE(exists || key.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 0)
          << shown.where << ": " << key;
      ++checked;
    }
  }
  EXPECT_GE(checked, 5);
}

/// The blocks of commands of a page.
std::vector<std::string> blocks_of(const fs::path& page) {
  std::vector<std::string> out;
  bool inside = false;
  for (const std::string& line : text::split(files::read(page), '\n')) {
    if (line == "```sh") out.emplace_back();
    if (line.starts_with("```"))
      inside = line == "```sh";
    else if (inside)
      out.back() += line + '\n';
  }
  return out;
}

TEST(DocumentedCommands, AreTheSameInBothLanguages) {
  const fs::path docs = fs::path(tessera::test::source_dir()) / "docs";
  int pages = 0;
  for (const auto& entry : fs::directory_iterator(docs / "start")) {
    const fs::path name = entry.path().filename();
    SCOPED_TRACE(name.string());
    EXPECT_EQ(blocks_of(entry.path()), blocks_of(docs / "zh" / "start" / name));
    ++pages;
  }
  EXPECT_EQ(pages, 5);
}

TEST(DocumentedCommands, ACommandThatIsWrongIsRefused) {
  const CheckingWords only_words;
  for (const char* const line :
       {"train my.json --no-such-flag 1", "predict RUN --batch x", "trian"})
    EXPECT_EQ(run_program(concrete(line)).code, 2) << line;
}

}  // namespace
}  // namespace tessera::cli
