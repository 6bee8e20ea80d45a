// SPDX-License-Identifier: Apache-2.0
// Declarative options: a struct's describe() lists the key, range and description of each field.
// The reader, the writer, the flags, --help, the validation and docs/config.md are all derived from
// it.
//
//   struct EvalOptions {
//     std::int64_t every = 0;
//     void describe(config::Fields& f) {
//       f.field("every", every, {.text = "Evaluate every N steps; 0 disables it.", .unit =
//       "steps", .min = 0});
//     }
//   };
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/json.h"

namespace tessera::config {

/// The properties of a field, besides its type, that documentation and validation need.
struct Doc {
  std::string text;                                       ///< one sentence
  std::string unit = {};                                  ///< "steps", "tokens", "bytes"
  double min = -std::numeric_limits<double>::infinity();  ///< inclusive
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                 ///< min itself is excluded
  std::vector<std::string> choices = {};  ///< allowed values of a string field
  std::string default_text = {};          ///< rule that computes the default, if it is not a value
  bool required = false;
  std::string type = {};  ///< type of a json::Value field, such as "list of integers"
};

/// A pointer to the member that a describe() passes for a field.
using Slot = std::variant<bool*,
                          std::int64_t*,
                          double*,
                          std::string*,
                          std::vector<double>*,
                          std::vector<std::string>*,
                          std::optional<bool>*,
                          std::optional<std::int64_t>*,
                          std::optional<double>*,
                          std::optional<std::string>*,
                          json::Value*>;

/// Visitor of a describe(). Subclasses read, write or document the fields.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual void field(std::string_view key, Slot slot, const Doc& doc) = 0;
  template <class T>
  void field(std::string_view key, T& member, const Doc& doc) {
    field(key, Slot(&member), doc);
  }
  /// Describes a field whose values are the names in `names`, which outlive the visit; `member` is
  /// an enumeration or an optional of one.
  template <class M, class E, std::size_t N>
  void choice(std::string_view key, M& member, const NameTable<E, N>& names, Doc doc) {
    choice(key, choice_slot(member, names), std::move(doc));
  }
  /// Visits the word as a string field with these choices, and sets the member where it changed.
  virtual void choice(std::string_view key, const ChoiceSlot& slot, Doc doc);
  /// Describes a nested object.
  template <class S>
  void section(std::string_view key, S& member, std::string_view sentence) {
    begin(key, sentence);
    member.describe(*this);
    end();
  }
  virtual void begin(std::string_view key, std::string_view sentence) = 0;
  virtual void end() = 0;
};

/// Problems of a configuration. They are collected so that all are reported at once.
class Problems {
 public:
  enum class Kind : std::uint8_t {
    Wrong,    ///< the value cannot be used
    Unknown,  ///< an unknown key
    Missing,  ///< a required key that is absent so far: another file or the command line may set it
  };
  struct Problem {
    json::Place place;
    std::string path;  ///< "optimizer.params.lr"
    std::string what;
    std::string fix;
    Kind kind = Kind::Wrong;
  };
  void add(const json::Place& place,
           std::string path,
           std::string what,
           std::string fix = "",
           Kind kind = Kind::Wrong);
  [[nodiscard]] bool empty() const { return list_.empty(); }
  [[nodiscard]] const std::vector<Problem>& list() const { return list_; }
  /// Returns whether a problem concerns this key or an object around it; further problems with it
  /// need not be reported.
  [[nodiscard]] bool concern(std::string_view path) const;
  /// Adds the problems of a part of the configuration that was checked separately; `path` is where
  /// the part belongs.
  void adopt(const Problems& part, std::string_view path);
  /// Throws Error{Config} that lists every problem with place, key path and fix; does nothing if
  /// there is none.
  void raise() const;

 private:
  std::vector<Problem> list_;
};

/// Returns how to fix the unknown `key` where `known` keys are expected: a space to remove, the
/// corresponding key of another system's name, the key of `all` (paths of the whole configuration)
/// that has this name elsewhere, the nearest name, or a list of the known keys.
std::string unknown_key_fix(std::string_view key,
                            std::span<const std::string> known,
                            std::span<const std::string> all = {});

/// Reports that `value` stands at `path` instead of an object with these keys, and suggests a
/// replacement: {"enabled": true} for true, {"type": "AdamW"} for "AdamW".
void report_not_an_object(const json::Value& value,
                          const std::string& path,
                          std::span<const std::string> keys,
                          Problems& problems);

/// Records the source positions of keys, so that later cross checks can refer to them.
class Origins {
 public:
  void note(std::string path, json::Place place);
  /// Records `value` and everything in it.
  void note_all(const std::string& path, const json::Value& value);
  /// Returns the place of the key or of its nearest enclosing object that was recorded.
  [[nodiscard]] json::Place place(std::string_view path) const;
  [[nodiscard]] bool given(std::string_view path) const;  ///< whether the user wrote this very key

 private:
  std::vector<std::pair<std::string, json::Place>> list_;
};

/// Reads `source` (an object) into the fields that `options.describe` names. Unknown keys (with the
/// nearest name), wrong types, ranges and choices are reported in `problems`; absent keys keep
/// their defaults. null means "not given"; a single string is accepted for a list of one.
template <class S>
void read(const json::Value& source, S& options, Problems& problems, Origins& origins);
/// Returns the options as JSON in the order of describe(); optionals without a value are omitted.
template <class S>
json::Value write(S& options);

namespace detail {
void read_fields(const json::Value& source,
                 void (*describe)(void*, Fields&),
                 void* options,
                 Problems& problems,
                 Origins& origins);
json::Value write_fields(void (*describe)(void*, Fields&), void* options);
}  // namespace detail

template <class S>
void read(const json::Value& source, S& options, Problems& problems, Origins& origins) {
  detail::read_fields(
      source,
      [](void* s, Fields& f) { static_cast<S*>(s)->describe(f); },
      &options,
      problems,
      origins);
}
template <class S>
json::Value write(S& options) {
  return detail::write_fields([](void* s, Fields& f) { static_cast<S*>(s)->describe(f); },
                              &options);
}

}  // namespace tessera::config
