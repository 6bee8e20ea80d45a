// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/option_table.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::interop {
namespace {

constexpr auto kForms =
    std::to_array<std::pair<std::string_view, Form>>({{"number", Form::Number},
                                                      {"text", Form::Text},
                                                      {"switch", Form::Switch},
                                                      {"off", Form::Off},
                                                      {"stage", Form::Stage},
                                                      {"config", Form::Config},
                                                      {"rank", Form::Rank},
                                                      {"beta", Form::Beta},
                                                      {"lora_rank", Form::LoraRank},
                                                      {"lora_modules", Form::LoraModules},
                                                      {"dtype", Form::Dtype},
                                                      {"zero", Form::Zero},
                                                      {"ema", Form::Ema},
                                                      {"questions", Form::Questions},
                                                      {"data_paths", Form::DataPaths},
                                                      {"object", Form::Object},
                                                      {"names", Form::Names},
                                                      {"json", Form::Json},
                                                      {"report_to", Form::ReportTo},
                                                      {"board_folder", Form::BoardFolder},
                                                      {"wandb_project", Form::WandbProject},
                                                      {"run_name", Form::RunName},
                                                      {"megatron_rate", Form::MegatronRate},
                                                      {"vocabulary", Form::Vocabulary},
                                                      {"backend", Form::Backend},
                                                      {"sharded", Form::Sharded},
                                                      {"split", Form::Split},
                                                      {"one", Form::One},
                                                      {"none", Form::Nothing},
                                                      {"value", Form::Value},
                                                      {"many", Form::Many}});

[[noreturn]] void refuse_row(std::string_view row, std::string_view why) {
  throw Error(Error::Kind::Bug, fmt::format("table of options: {}: \"{}\"", why, row), "");
}

// The next word of `rest`, which is removed from it.
std::string_view next_word(std::string_view& rest) {
  rest = text::trim(rest);
  const std::size_t end = std::min(rest.find(' '), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest = text::trim(rest.substr(end));
  return word;
}

}  // namespace

// The tables of one program.
struct TableText {
  std::string_view rows;
  bool read = false;
  std::map<std::string_view, OptionTable> sections;
};

namespace {

std::map<std::string_view, TableText>& texts() {
  static std::map<std::string_view, TableText> all;
  return all;
}

}  // namespace

// Reads the text of a program.
class TableReader {
 public:
  static void read(TableText& text) {
    TableReader reader(text);
    std::string_view rest = text.rows;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      reader.line(text::trim(rest.substr(0, end)));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    text.read = true;
  }

 private:
  explicit TableReader(TableText& text) : text_(text) {}

  void line(std::string_view line) {
    if (line.empty() || line.front() == '#') return;
    if (line.front() == '[') return section(line);
    if (line.front() == '@') return note(line);
    row(line);
  }

  void section(std::string_view line) {
    const std::size_t end = line.find(']');
    if (end == std::string_view::npos) refuse_row(line, "a section without its end");
    const auto [at, added] = text_.sections.try_emplace(line.substr(1, end - 1));
    if (!added) refuse_row(line, "a section that occurs twice");
    table_ = &at->second;
    table_->title_ = text::trim(line.substr(end + 1));
  }

  void note(std::string_view line) {
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) refuse_row(line, "a note without a text");
    notes_[text::trim(line.substr(0, equals))] = text::trim(line.substr(equals + 1));
  }

  void row(std::string_view line) {
    if (table_ == nullptr) refuse_row(line, "a row before the first section");
    std::array<std::string_view, 4> cells;
    std::string_view rest = line;
    // A cell ends with a space and a bar; a bar without a space is part of a value: <|endoftext|>.
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::size_t end =
          i + 1 == cells.size() ? rest.size() : std::min(rest.find(" |"), rest.size());
      cells[i] = text::trim(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 2, rest.size()));
    }
    Option out;
    out.initial = cells[2];
    out.note = cells[3];
    if (out.note.starts_with('@')) {
      const auto found = notes_.find(out.note);
      if (found == notes_.end()) refuse_row(line, "there is no note of that name");
      out.note = found->second;
    }
    read_meaning(line, cells[1], out);
    read_names(line, cells[0], out);
    table_->options_.push_back(std::move(out));
  }

  static void read_meaning(std::string_view line, std::string_view cell, Option& out) {
    const std::string_view kind = next_word(cell), form = next_word(cell);
    if (kind == "mapped")
      out.kind = OptionClass::Mapped;
    else if (kind == "same")
      out.kind = OptionClass::Same;
    else if (kind == "refused")
      out.kind = OptionClass::Refused;
    else
      refuse_row(line, "expected mapped, same or refused");
    const auto* const found = std::find_if(
        kForms.begin(), kForms.end(), [&](const auto& one) { return one.first == form; });
    if (found == kForms.end()) refuse_row(line, "there is no such form");
    out.form = found->second;
    out.key = cell;
    if (out.kind != OptionClass::Mapped && out.note.empty())
      refuse_row(line, "the note is missing");
  }

  void read_names(std::string_view line, std::string_view cell, Option& out) {
    while (!cell.empty()) {
      const std::size_t end = std::min(cell.find(','), cell.size());
      const std::string_view name = text::trim(cell.substr(0, end));
      cell.remove_prefix(std::min(end + 1, cell.size()));
      if (!table_->by_name_.emplace(name, table_->options_.size()).second)
        refuse_row(line, "an option that occurs twice");
      out.names.push_back(name);
    }
    if (out.names.empty()) refuse_row(line, "the name is missing");
  }

  TableText& text_;
  OptionTable* table_ = nullptr;
  std::map<std::string_view, std::string_view> notes_;
};

const Option* OptionTable::find(std::string_view name) const {
  const auto found = by_name_.find(option_name(name));
  return found == by_name_.end() ? nullptr : &options_[found->second];
}

bool add_option_tables(std::string_view program, std::string_view rows) {
  texts()[program].rows = rows;
  return true;
}

const OptionTable& option_table(std::string_view name) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::size_t slash = std::min(name.find('/'), name.size());
  const auto found = texts().find(name.substr(0, slash));
  if (found == texts().end()) refuse_row(name, "there is no such program");
  TableText& text = found->second;
  if (!text.read) TableReader::read(text);
  const auto section = text.sections.find(name.substr(std::min(slash + 1, name.size())));
  if (section == text.sections.end()) refuse_row(name, "there is no such section");
  return section->second;
}

std::vector<std::string> option_tables() {
  std::vector<std::string> out;
  for (auto& [program, text] : texts()) {
    if (!text.read) TableReader::read(text);
    for (const auto& [section, table] : text.sections)
      out.push_back(fmt::format("{}/{}", program, section));
  }
  return out;
}

std::string option_name(std::string_view typed) {
  const std::size_t begin = std::min(typed.find_first_not_of('-'), typed.size());
  std::string out(typed.substr(begin));
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace tessera::interop
