// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/arguments.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/terminal.h"

namespace tessera::cli {

struct Arguments::Parser {
  CLI::App app;
  std::vector<std::string> also;
};

Arguments::Arguments(const std::string& command,
                     const std::string& sentence,
                     const std::vector<std::string>& examples)
    : parser_(std::make_unique<Parser>()) {
  CLI::App& app = parser_->app;
  app.description(sentence);
  app.name("tessera " + command);
  app.allow_extras();
  std::string footer = "Examples:";
  for (const std::string& example : examples)
    footer += "\n  " + example;
  app.footer(footer);
}

Arguments::~Arguments() = default;

namespace {

void add(CLI::App& app,
         const std::string& names,
         Target target,
         const std::string& help,
         bool required) {
  std::visit(
      [&](auto* value) {
        CLI::Option* option = app.add_option(names, *value, help);
        option->required(required);
        if constexpr (std::is_same_v<decltype(value), std::vector<std::string>*>) {
          // Each use of an option takes one word; a positional takes all that remain.
          if (names.front() == '-') option->type_size(1)->allow_extra_args(false)->take_all();
        }
      },
      target);
}

}  // namespace

void Arguments::positional(const std::string& name,
                           Target target,
                           const std::string& help,
                           bool required) {
  add(parser_->app, name, target, help, required);
}

void Arguments::option(const std::string& names, Target target, const std::string& help) {
  add(parser_->app, names, target, help, /*required=*/false);
}

void Arguments::flag(const std::string& names, bool& target, const std::string& help) {
  parser_->app.add_flag(names, target, help);
}

void Arguments::also(std::vector<std::string> names) {
  parser_->also = std::move(names);
}

void Arguments::common(Common& target, bool has_json) {
  common_ = &target;
  flag("-q,--quiet", target.quiet, "Print errors only, and the result that was asked for");
  flag("-v,--verbose", target.verbose, "Print more details");
  if (has_json) flag("--json", target.json, "Write JSON");
}

namespace {

thread_local Collecting* collecting = nullptr;
thread_local bool checks_words = false;

// Names of both kinds, as typed.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_snames())
    out.push_back("-" + name);
  for (const std::string& name : option.get_lnames())
    out.push_back("--" + name);
  return out;
}

bool has_option(const CLI::App& app, std::string_view word, bool with_value) {
  for (const CLI::Option* option : app.get_options()) {
    if (with_value && option->get_items_expected_min() == 0) continue;
    const std::vector<std::string> names = names_of(*option);
    if (std::find(names.begin(), names.end(), word) != names.end()) return true;
  }
  return false;
}

// "-" and "_" are the same in names of options: --max_new_tokens is --max-new-tokens.
std::vector<std::string> with_known_names(const CLI::App& app, std::vector<std::string> words) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : names_of(*option))
      known.push_back(name);
  }
  const auto plain = [](std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return name;
  };
  for (std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with("--")) continue;
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto it = std::find_if(known.begin(), known.end(), [&](const std::string& one) {
      return plain(one) == plain(name);
    });
    if (it == known.end()) continue;
    word = *it + (equals == std::string::npos ? std::string() : word.substr(equals));
  }
  return words;
}

// An option must not become the value of the previous option: nobody means a run named -q.
void refuse_options_as_values(const CLI::App& app, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (!has_option(app, words[i], /*with_value=*/true)) continue;
    ++i;  // skip its value
    const std::string name = words[i].substr(0, words[i].find('='));
    if (!has_option(app, name, /*with_value=*/false)) continue;
    throw Error(
        Error::Kind::Config,
        fmt::format("{}: {}: the value is missing", app.get_name(), words[i - 1]),
        words[i - 1].starts_with("--")
            ? fmt::format(
                  "add it; {0}={1}, without a space, uses {1} as the value", words[i - 1], words[i])
            : "add it");
  }
}

// Reports a word that matches nothing.
[[noreturn]] void refuse_word(const CLI::App& app,
                              const std::vector<std::string>& also,
                              const std::string& word) {
  std::string fix = fmt::format("see: {} --help", app.get_name());
  if (word.size() > 1 && word.front() == '-') {
    std::vector<std::string> known = also;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames())
        known.push_back("--" + name);
    }
    const std::string name = word.substr(0, word.find('='));
    if (const auto near = text::nearest(name, known)) fix = "did you mean " + *near + "?";
    throw Error(
        Error::Kind::Config, fmt::format("{}: unknown option {}", app.get_name(), name), fix);
  }
  const std::size_t equals = word.find('=');
  if (equals != std::string::npos && has_option(app, "--set", /*with_value=*/true)) {
    const bool whole = equals > 0 && equals + 1 < word.size();
    fix = fmt::format("--set {}, without spaces around \"=\"", whole ? word : "KEY=VALUE");
  }
  throw Error(
      Error::Kind::Config, fmt::format("{}: unexpected argument: {}", app.get_name(), word), fix);
}

}  // namespace

Collecting::Collecting() {
  TESSERA_ASSERT(collecting == nullptr);
  collecting = this;
}

Collecting::~Collecting() {
  collecting = nullptr;
}

CheckingWords::CheckingWords() {
  TESSERA_ASSERT(!checks_words);
  checks_words = true;
}

CheckingWords::~CheckingWords() {
  checks_words = false;
}

CommandDoc Arguments::document() const {
  constexpr std::string_view kProgram = "tessera ";
  CommandDoc out{parser_->app.get_name().substr(kProgram.size()), help(), {}};
  for (const CLI::Option* option : parser_->app.get_options()) {
    std::vector<std::string> names = names_of(*option);
    if (names.empty()) names.push_back(option->get_name());
    out.options.push_back(
        {std::move(names), option->get_items_expected_min() > 0, option->get_description()});
  }
  return out;
}

bool Arguments::parse(const std::vector<std::string>& typed) {
  if (collecting != nullptr) {
    collecting->found_.push_back(document());
    return false;
  }
  CLI::App& app = parser_->app;
  const std::vector<std::string> words = with_known_names(app, typed);
  refuse_options_as_values(app, words);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error(Error::Kind::Config,
                fmt::format("{}: {}", app.get_name(), error.what()),
                fmt::format("see: {} --help", app.get_name()));
  }
  if (common_ != nullptr && common_->verbose) show_log(log::Level::Info);
  if (common_ != nullptr && common_->quiet) show_log(log::Level::Error);
  const std::vector<std::string> extra = app.remaining();
  if (!extra.empty()) refuse_word(app, parser_->also, extra.front());
  return !checks_words;
}

std::string Arguments::help() const {
  return parser_->app.help();
}

}  // namespace tessera::cli
