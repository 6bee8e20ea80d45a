// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/arguments.h"

#include <cstdio>
#include <utility>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/terminal.h"

namespace tessera::cli {

struct Arguments::Parser {
  std::string command;
  CLI::App app;
  std::vector<std::string> also;
};

Arguments::Arguments(const std::string& command,
                     const std::string& sentence,
                     const std::vector<std::string>& examples)
    : parser_(std::make_unique<Parser>()) {
  parser_->command = command;
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
          // One word for each use of an option; a positional takes all that are left.
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
  flag("-q,--quiet", target.quiet, "Say only what went wrong");
  flag("-v,--verbose", target.verbose, "Say more");
  if (has_json) flag("--json", target.json, "Write JSON");
}

bool Arguments::parse(const std::vector<std::string>& words) {
  CLI::App& app = parser_->app;
  const std::string see = "see: tessera " + parser_->command + " --help";
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error(Error::Kind::Config, "tessera " + parser_->command + ": " + error.what(), see);
  }
  if (common_ != nullptr && common_->verbose) show_log(log::Level::Info);
  const std::vector<std::string> extra = app.remaining();
  if (extra.empty()) return true;
  std::vector<std::string> known = parser_->also;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      known.push_back("--" + name);
  }
  const bool dashed = extra.front().size() > 1 && extra.front().front() == '-';
  const std::string name = extra.front().substr(0, extra.front().find('='));
  const auto near = dashed ? text::nearest(name, known) : std::nullopt;
  throw Error(Error::Kind::Config,
              "tessera " + parser_->command + ": " +
                  (dashed ? "unknown option " : "one word too many: ") + name,
              near ? "did you mean " + *near + "?" : see);
}

std::string Arguments::help() const {
  return parser_->app.help();
}

}  // namespace tessera::cli
