// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/superglue.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/config/json.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {
namespace {

bool has_all(const json::Value& value, std::initializer_list<std::string_view> names) {
  return std::ranges::all_of(names, [&](auto name) { return value.find(name) != nullptr; });
}

bool is_object_with(const json::Value& record, std::string_view field, std::string_view inner) {
  const json::Value* const found = record.find(field);
  return found != nullptr && found->is_object() && found->find(inner) != nullptr;
}

/// An object inside a record, as a record with the same place.
data::Record inside(const data::Record& record, const json::Value& value, const char* what) {
  if (!value.is_object()) {
    record.refuse(fmt::format("an entry of \"{}\" is {}", what, value.type_name()),
                  "give the file as it is downloaded");
  }
  data::Record out = record;
  out.value = value;
  return out;
}

/// The objects of a list.
std::vector<data::Record> list_of(const data::Record& record, const char* field) {
  const json::Value& list = field_of(record, field, nullptr);
  if (!list.is_array()) {
    record.refuse(fmt::format("\"{}\" is {}", field, list.type_name()),
                  "give the file as it is downloaded");
  }
  std::vector<data::Record> out;
  for (const json::Value& item : list.items())
    out.push_back(inside(record, item, field));
  return out;
}

std::int64_t integer_of(const data::Record& record, const char* field) {
  const json::Value& value = field_of(record, field, nullptr);
  const std::optional<std::int64_t> number = value.is_number() ? value.as_integer() : std::nullopt;
  if (!number || *number < 0) {
    record.refuse(fmt::format("\"{}\" is {}", field, value.dump()),
                  "give a position in the text, counted from 0");
  }
  return *number;
}

/// The byte of a position that is counted in characters.
std::size_t byte_of(const data::Record& record, std::string_view text, std::int64_t character) {
  std::size_t at = 0;
  for (; character > 0 && at < text.size(); --character) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U)
      ++at;
  }
  if (character > 0) {
    record.refuse("a span index is past the end of its text", "use the original file");
  }
  return at;
}

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

/// A record of two texts, with the label of `from` if it has one.
data::Record pair_of_texts(const data::Record& from, std::string first, std::string second) {
  data::Record out = from;
  out.value = json::Value::object({{"sentence1", json::Value::string(std::move(first))},
                                   {"sentence2", json::Value::string(std::move(second))}});
  if (const json::Value* const label = from.value.find("label")) out.value["label"] = *label;
  return out;
}

// The questions are those of COPA's authors (Roemmele et al. 2011).
data::Record choice(const data::Record& record) {
  const std::string question = text_of(record, "question", nullptr);
  if (question != "cause" && question != "effect") {
    record.refuse(fmt::format("\"question\" is \"{}\"", question), "give cause or effect");
  }
  return pair_of_texts(
      record,
      text_of(record, "premise", nullptr) +
          (question == "cause" ? " What was the cause of this?" : " What happened as a result?"),
      fmt::format("choice1: {} choice2: {}",
                  text_of(record, "choice1", nullptr),
                  text_of(record, "choice2", nullptr)));
}

/// MultiRC numbers the sentences of a paragraph in markup.
std::string without_markup(std::string text) {
  replace_all(text, "<br>", " ");
  replace_all(text, "<b>", "");
  replace_all(text, "</b>", "");
  return text;
}

std::vector<data::Record> answers(const data::Record& record) {
  const data::Record passage = inside(record, field_of(record, "passage", nullptr), "passage");
  const std::string paragraph = without_markup(text_of(passage, "text", nullptr));
  std::vector<data::Record> out;
  for (const data::Record& question : list_of(passage, "questions")) {
    const std::string asked = text_of(question, "question", nullptr);
    for (const data::Record& answer : list_of(question, "answers"))
      out.push_back(
          pair_of_texts(answer, paragraph, asked + " " + text_of(answer, "text", nullptr)));
  }
  return out;
}

/// ReCoRD separates the summary points of a passage by a line "@highlight".
std::string without_highlights(std::string text) {
  constexpr std::string_view kMark = "\n@highlight\n";
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at)) {
    const bool ends =
        at > 0 && std::string_view(".?!\"'").find(text[at - 1]) != std::string_view::npos;
    text.replace(at, kMark.size(), ends ? " " : ". ");
  }
  return text;
}

std::vector<data::Record> entities(const data::Record& record) {
  const data::Record passage = inside(record, field_of(record, "passage", nullptr), "passage");
  const std::string text = text_of(passage, "text", nullptr);
  std::vector<std::string> names;
  for (const data::Record& entity : list_of(passage, "entities")) {
    // The end is the last character of the entity.
    const std::size_t begin = byte_of(record, text, integer_of(entity, "start")),
                      end = byte_of(record, text, integer_of(entity, "end") + 1);
    std::string name = text.substr(begin, end > begin ? end - begin : 0);
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  const std::string shown = without_highlights(text);
  std::vector<data::Record> out;
  for (const data::Record& query : list_of(record, "qas")) {
    std::vector<std::string> right;
    const bool labelled = query.value.find("answers") != nullptr;
    if (labelled) {
      for (const data::Record& answer : list_of(query, "answers"))
        right.push_back(text_of(answer, "text", nullptr));
    }
    for (const std::string& name : names) {
      std::string filled = text_of(query, "query", nullptr);
      replace_all(filled, "@placeholder", name);
      data::Record& one = out.emplace_back(pair_of_texts(query, shown, std::move(filled)));
      if (labelled) {
        one.value["label"] = json::Value::boolean(std::ranges::find(right, name) != right.end());
      }
    }
  }
  return out;
}

std::string marked(const std::string& text, std::size_t begin, std::size_t end, char mark) {
  return fmt::format("{0}{1} {2} {1}{3}",
                     std::string_view(text).substr(0, begin),
                     mark,
                     std::string_view(text).substr(begin, end - begin),
                     std::string_view(text).substr(end));
}

data::Record word_in_context(const data::Record& record) {
  const auto sentence = [&](const char* field, const char* start, const char* end) {
    const std::string text = text_of(record, field, nullptr);
    const std::size_t first = byte_of(record, text, integer_of(record, start)),
                      last = byte_of(record, text, integer_of(record, end));
    if (last <= first) {
      record.refuse(fmt::format("\"{}\" is not behind \"{}\"", end, start),
                    "give the file as it is downloaded");
    }
    return marked(text, first, last, '*');
  };
  return pair_of_texts(
      record, sentence("sentence1", "start1", "end1"), sentence("sentence2", "start2", "end2"));
}

/// The byte at which a word begins; words are separated by white space and counted from 0.
std::size_t word_begin(const data::Record& record, std::string_view text, std::int64_t word) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::size_t at = text.find_first_not_of(kSpace);
  for (; word > 0 && at != std::string_view::npos; --word) {
    at = text.find_first_of(kSpace, at);
    if (at != std::string_view::npos) at = text.find_first_not_of(kSpace, at);
  }
  if (at == std::string_view::npos) {
    record.refuse("a span begins behind the last word", "give the file as it is downloaded");
  }
  return at;
}

data::Record coreference(const data::Record& record) {
  const std::string text = text_of(record, "text", nullptr);
  const data::Record target = inside(record, field_of(record, "target", nullptr), "target");
  struct Span {
    std::size_t begin = 0, size = 0;
    char mark = '*';
  };
  const auto span = [&](const char* name, const char* index, char mark) {
    const std::string words = text_of(target, name, nullptr);
    const std::size_t begin = word_begin(record, text, integer_of(target, index));
    // Some spans are written in another case than in the text, or without its punctuation.
    return Span{begin, std::min(words.size(), text.size() - begin), mark};
  };
  std::array<Span, 2> spans = {span("span1_text", "span1_index", '*'),
                               span("span2_text", "span2_index", '#')};
  // The later span is marked first, so that the place of the earlier one remains.
  if (spans[0].begin < spans[1].begin) std::swap(spans[0], spans[1]);
  std::string out = text;
  for (const Span& one : spans)
    out = marked(out, one.begin, one.begin + one.size, one.mark);
  data::Record made = record;
  made.value = json::Value::object({{"text", json::Value::string(std::move(out))}});
  if (const json::Value* const label = record.value.find("label")) made.value["label"] = *label;
  return made;
}

}  // namespace

std::vector<data::Record> superglue_records(const data::Record& record) {
  const json::Value& value = record.value;
  if (has_all(value, {"premise", "choice1", "choice2", "question"})) return {choice(record)};
  if (is_object_with(value, "passage", "questions")) return answers(record);
  if (is_object_with(value, "passage", "entities") && has_all(value, {"qas"}))
    return entities(record);
  if (has_all(value, {"word", "sentence1", "start1", "sentence2", "start2"}))
    return {word_in_context(record)};
  if (has_all(value, {"text"}) && is_object_with(value, "target", "span1_text"))
    return {coreference(record)};
  return {record};
}

}  // namespace tessera::tasks
