// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/turns.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/tasks/answer_ends.h"

namespace tessera::tasks {

/// The part of a marked rendering in which a message is.
struct TurnPart {
  std::optional<std::size_t> first;  ///< the beginning of its first mark
  std::size_t last = 0;              ///< the end of its last mark
  std::size_t floor = 0, limit = 0;  ///< the marks of other messages are outside
};

namespace {

constexpr std::string_view kThinkingEnd = "</think>";
constexpr std::size_t kNowhere = std::string::npos;

/// Words of a message's content, and the mark that replaces it.
struct Mark {
  std::string text;
  std::string content;
  std::size_t message = 0;
};

/// A mark in a rendering.
struct Place {
  std::size_t mark = 0;
  std::size_t begin = 0, end = 0;
};

/// Messages whose contents are marks.
class Marked {
 public:
  Marked(const json::Value& messages, const std::string& whole) : messages_(messages) {
    while (whole.find(prefix_) != kNowhere)
      prefix_ += 'q';
    for (std::size_t i = 0; i < messages_.items().size(); ++i)
      mark_message(i);
  }

  [[nodiscard]] const json::Value& messages() const { return messages_; }
  [[nodiscard]] const Mark& mark(const Place& place) const { return marks_[place.mark]; }

  [[nodiscard]] bool marks(std::size_t message) const {
    return std::ranges::find(marks_, message, &Mark::message) != marks_.end();
  }

  /// The marks in a rendering, from left to right.
  [[nodiscard]] std::vector<Place> places_in(const std::string& text) const {
    std::vector<Place> out;
    for (std::size_t at = text.find(prefix_); at != kNowhere; at = text.find(prefix_, at + 1)) {
      const auto found = std::ranges::find_if(marks_, [&](const Mark& mark) {
        return text.compare(at, mark.text.size(), mark.text) == 0;
      });
      if (found != marks_.end())
        out.push_back(
            {static_cast<std::size_t>(found - marks_.begin()), at, at + found->text.size()});
    }
    return out;
  }

 private:
  void mark_message(std::size_t number) {
    json::Value* const content = messages_.items()[number].find("content");
    if (content == nullptr) return;
    const bool answers = messages_.items()[number].find("role")->as_string() == "assistant";
    if (content->is_string()) {
      *content = json::Value::string(marked(content->as_string(), number, answers));
    } else if (content->is_array()) {
      for (json::Value& part : content->items()) {
        json::Value* const text = part.is_object() ? part.find("text") : nullptr;
        if (text != nullptr && text->is_string())
          *text = json::Value::string(marked(text->as_string(), number, answers));
      }
    }
  }

  /// The text with marks instead of its words. Templates look at the white space around them, and
  /// at the end of an answer's thoughts.
  std::string marked(const std::string& text, std::size_t message, bool answers) {
    const std::size_t thoughts = answers ? text.rfind(kThinkingEnd) : kNowhere;
    if (thoughts == kNowhere) return replaced(text, message);
    constexpr std::string_view kThinking = "<think>";
    const std::size_t begin = text.starts_with(kThinking) ? kThinking.size() : 0;
    return text.substr(0, begin) + replaced(text.substr(begin, thoughts - begin), message) +
           std::string(kThinkingEnd) +
           replaced(text.substr(thoughts + kThinkingEnd.size()), message);
  }
  std::string replaced(const std::string& text, std::size_t message) {
    const std::string_view words = text::trim(text);
    if (words.empty()) return text;
    const auto before = static_cast<std::size_t>(words.data() - text.data());
    marks_.push_back({fmt::format("{}{:x}z", prefix_, marks_.size()), std::string(words), message});
    return text.substr(0, before) + marks_.back().text + text.substr(before + words.size());
  }

  std::string prefix_ = "zqxk";
  json::Value messages_;
  std::vector<Mark> marks_;
};

/// Positions of the marked rendering in the real one.
class Alignment {
 public:
  /// Nothing if the texts between the marks do not occur in `whole` in their order.
  static std::optional<Alignment> of(const Marked& marked,
                                     const std::string& text,
                                     const std::vector<Place>& places,
                                     const std::string& whole) {
    Alignment out;
    std::size_t at = 0, from = 0;  // in `whole`, and in `text`
    for (std::size_t p = 0; p <= places.size(); ++p) {
      const bool last = p == places.size();
      const std::string_view between =
          std::string_view(text).substr(from, (last ? text.size() : places[p].begin) - from);
      if (p > 0) {
        const auto begin =
            behind_content(whole, at, marked.mark(places[p - 1]).content, between, last);
        if (!begin) return std::nullopt;
        at = *begin;
      } else if (whole.compare(0, between.size(), between) != 0) {
        return std::nullopt;
      }
      out.pieces_.push_back({from, at});
      at += between.size();
      if (last) break;
      from = places[p].end;
    }
    return at == whole.size() ? std::optional(out) : std::nullopt;
  }

  /// `position`: not inside a mark.
  [[nodiscard]] std::size_t in_whole(std::size_t position) const {
    const auto next = std::ranges::upper_bound(
        pieces_, position, {}, &std::pair<std::size_t, std::size_t>::first);
    const auto& piece = *std::prev(next);
    return piece.second + (position - piece.first);
  }

 private:
  /// The offset in `whole` at which the text behind a content begins, if the content is at `at`;
  /// the template may have changed it.
  static std::optional<std::size_t> behind_content(const std::string& whole,
                                                   std::size_t at,
                                                   const std::string& content,
                                                   std::string_view between,
                                                   bool last) {
    const auto follows = [&](std::size_t begin) {
      return whole.compare(begin, between.size(), between) == 0 &&
             (!last || begin + between.size() == whole.size());
    };
    if (whole.compare(at, content.size(), content) == 0 && follows(at + content.size()))
      return at + content.size();
    if (last) {
      const bool room = whole.size() >= at + between.size();
      if (!room || !follows(whole.size() - between.size())) return std::nullopt;
      return whole.size() - between.size();
    }
    const std::size_t next = between.empty() ? kNowhere : whole.find(between, at);
    return next == kNowhere ? std::nullopt : std::optional(next);
  }

  std::vector<std::pair<std::size_t, std::size_t>> pieces_;  // begins in the marked text, in whole
};

json::Value first_messages(const json::Value& messages, std::size_t count) {
  return json::Value::array(
      {messages.items().begin(), messages.items().begin() + static_cast<std::ptrdiff_t>(count)});
}

bool answers_in(const json::Value& message) {
  return message.find("role")->as_string() == "assistant";
}

/// The size of a rendering that `text` begins with.
std::optional<std::size_t> beginning_of(const std::string& text,
                                        const json::Value& messages,
                                        bool add_generation_prompt,
                                        const Turns::Render& render) {
  try {
    const std::string prefix = render(messages, add_generation_prompt);
    if (text.starts_with(prefix)) return prefix.size();
  } catch (const Error&) {
    return std::nullopt;  // a template may refuse a part of a conversation
  }
  return std::nullopt;
}

/// `done`: the end of the messages before it that have no marks.
TurnPart part_of(std::size_t message,
                 const Marked& marked,
                 const std::vector<Place>& places,
                 std::size_t done,
                 std::size_t size) {
  TurnPart out{.first = {}, .last = 0, .floor = done, .limit = size};
  for (const Place& place : places) {
    if (marked.mark(place).message != message) continue;
    out.first = std::min(out.first.value_or(place.begin), place.begin);
    out.last = place.end;
  }
  for (const Place& place : places) {
    const std::size_t other = marked.mark(place).message;
    if (other == message) continue;
    const bool before = out.first ? place.end <= *out.first : other < message;
    const bool after = out.first ? place.begin >= out.last : other > message;
    if (before) out.floor = std::max(out.floor, place.end);
    if (after && place.begin >= out.floor) out.limit = std::min(out.limit, place.begin);
  }
  return out;
}

/// The first special token of a text; empty if it has none.
std::string first_special(const std::string& text, const text::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  const auto found =
      std::ranges::find_if(ids, [&](std::int32_t id) { return tokenizer.is_special(id); });
  return found == ids.end() ? std::string() : std::string(tokenizer.bytes_of(*found));
}

/// The texts that the template writes behind the two messages of a question and an answer that
/// another question follows.
std::optional<std::pair<std::string, std::string>> behind_turns(
    const text::chat::ChatTemplate& chat) {
  const std::vector<std::string> words = {"4f1c9a", "b72e05", "c90d36"};
  json::Value messages = json::Value::array();
  for (std::size_t i = 0; i < words.size(); ++i) {
    messages.push_back(
        json::Value::object({{"role", json::Value::string(i == 1 ? "assistant" : "user")},
                             {"content", json::Value::string(words[i])}}));
  }
  std::string text;
  try {
    text = chat.render(messages).text;
  } catch (const Error&) {
    return std::nullopt;
  }
  std::vector<std::size_t> at;
  for (const std::string& word : words)
    at.push_back(text.find(word));
  if (at[1] < at[0] || at[2] < at[1] || at[2] == kNowhere) return std::nullopt;
  const auto between = [&](std::size_t i) {
    const std::size_t begin = at[i] + words[i].size();
    return text.substr(begin, at[i + 1] - begin);
  };
  return std::pair{between(0), between(1)};
}

}  // namespace

Turns::Turns(const text::chat::ChatTemplate& chat, const text::Tokenizer& tokenizer)
    : ends_({end_of_turn(tokenizer, chat)}) {
  const json::Value question = json::Value::array({json::Value::object(
      {{"role", json::Value::string("user")}, {"content", json::Value::string("a")}})});
  try {
    text::chat::RenderOptions options;
    const std::string before = chat.render(question, options).text;
    options.add_generation_prompt = true;
    const std::string through = chat.render(question, options).text;
    const auto same = std::ranges::mismatch(before, through).in2 - through.begin();
    begin_ = through.substr(static_cast<std::size_t>(same));
  } catch (const Error&) {
    begin_.clear();
  }
  const auto behind = behind_turns(chat);
  if (!behind || (!ends_[0].empty() && behind->second.find(ends_[0]) != kNowhere)) return;
  // A token that ends every turn is not the beginning of a question's.
  const std::string inner = first_special(behind->second, tokenizer);
  if (!inner.empty() && inner == first_special(behind->first, tokenizer)) ends_.push_back(inner);
}

std::optional<std::size_t> Turns::begin_of(const TurnPart& part,
                                           const std::string& text,
                                           const json::Value& before,
                                           const Render& render) const {
  const std::size_t most = part.first.value_or(part.limit);
  if (!begin_.empty() && most >= begin_.size()) {
    const std::size_t at =
        part.first ? text.rfind(begin_, most - begin_.size()) : text.find(begin_, part.floor);
    if (at != kNowhere && at >= part.floor && at + begin_.size() <= most) return at + begin_.size();
  }
  if (!before.items().empty()) {
    const auto begin = beginning_of(text, before, true, render);
    if (begin && *begin >= part.floor && *begin <= most) return begin;
  }
  return part.first;
}

std::optional<std::size_t> Turns::end_of(const TurnPart& part,
                                         std::size_t begin,
                                         const std::string& text,
                                         const json::Value& through,
                                         const Render& render) const {
  const std::size_t from = part.first ? part.last : begin;
  for (const std::string& end : ends_) {
    const std::size_t at = end.empty() ? kNowhere : text.find(end, from);
    if (at != kNowhere && at + end.size() <= part.limit) return at + end.size();
  }
  if (part.first) return from;
  const auto size = beginning_of(text, through, false, render);
  if (!size) return std::nullopt;
  // The line end after a turn belongs to the template.
  const std::size_t last = text.substr(0, *size).find_last_not_of(" \n");
  return std::max(from, last == kNowhere ? 0 : last + 1);
}

std::optional<Spans> Turns::find(const json::Value& messages,
                                 const std::string& whole,
                                 const Render& render) const {
  const Marked marked(messages, whole);
  const std::string text = render(marked.messages(), false);
  const std::vector<Place> places = marked.places_in(text);
  const auto alignment = Alignment::of(marked, text, places, whole);
  if (!alignment) return std::nullopt;
  Spans out;
  std::size_t done = 0;
  for (std::size_t i = 0; i < messages.items().size(); ++i) {
    if (!answers_in(messages.items()[i])) continue;
    const TurnPart part = part_of(i, marked, places, done, text.size());
    const bool left_out =
        !part.first && marked.marks(i) && messages.items()[i].find("tool_calls") == nullptr;
    if (left_out) {
      out.emplace_back(alignment->in_whole(part.floor), alignment->in_whole(part.floor));
      continue;
    }
    const auto begin = begin_of(part, text, first_messages(marked.messages(), i), render);
    if (!begin) return std::nullopt;
    const auto end = end_of(part, *begin, text, first_messages(marked.messages(), i + 1), render);
    if (!end) return std::nullopt;
    out.emplace_back(alignment->in_whole(*begin), alignment->in_whole(*end));
    done = *end;
  }
  return out;
}

}  // namespace tessera::tasks
