// SPDX-License-Identifier: Apache-2.0
// Options are declared once: a struct's describe() lists field, key, range and a sentence, and that
// list makes the reader, the writer, the flags, --help, the validation and docs/config.md.
//
//   struct EvalOptions {
//     std::int64_t every = 0;
//     void describe(config::Fields& f) {
//       f.field("every", every, {.text = "Evaluate every so many steps; 0 is never.", .unit =
//       "steps", .min = 0});
//     }
//   };
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::config {

/// What docs and checks need to know of a field beside its type.
struct Doc {
  std::string text;                                       ///< one sentence
  std::string unit = {};                                  ///< "steps", "tokens", "bytes"
  double min = -std::numeric_limits<double>::infinity();  ///< inclusive
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                 ///< min itself is not allowed
  std::vector<std::string> choices = {};  ///< of a string field
  std::string default_text = {};          ///< where the default is a rule and not a value
  bool required = false;
  std::string type = {};  ///< of a json::Value, which has none by itself: "list of integers"
};

/// A field that `describe` hands over: a pointer to the member itself.
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

/// Visitor of a describe(). Subclasses read, write, document.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual void field(std::string_view key, Slot slot, const Doc& doc) = 0;
  template <class T>
  void field(std::string_view key, T& member, const Doc& doc) {
    field(key, Slot(&member), doc);
  }
  /// A nested object.
  template <class S>
  void section(std::string_view key, S& member, std::string_view sentence) {
    begin(key, sentence);
    member.describe(*this);
    end();
  }
  virtual void begin(std::string_view key, std::string_view sentence) = 0;
  virtual void end() = 0;
};

/// Problems of a configuration, collected so that all are told at once.
class Problems {
 public:
  enum class Kind : std::uint8_t {
    Wrong,    ///< as it stands it cannot be done
    Unknown,  ///< a key that nobody knows
    Missing,  ///< not said yet: another file or the command line may
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
  /// Whether one of them is about this key or an object around it: what follows need not be told.
  [[nodiscard]] bool concern(std::string_view path) const;
  /// Adds those of a part of the configuration that was checked on its own; `path` is where the
  /// part stands.
  void adopt(const Problems& part, std::string_view path);
  /// Throws Error{Config} that lists every problem with place, key path and fix; nothing when there
  /// is none.
  void raise() const;

 private:
  std::vector<Problem> list_;
};

/// What to do about the unknown `key` where `known` ones are expected: a blank to remove, the key
/// of another system's name, the one of `all` (paths of the whole configuration) that has the name
/// elsewhere, the nearest name, or a list.
std::string unknown_key_fix(std::string_view key,
                            std::span<const std::string> known,
                            std::span<const std::string> all = {});

/// Tells that `value` stands at `path` instead of an object with these keys, and what to write:
/// {"enabled": true} for true, {"type": "AdamW"} for "AdamW".
void tell_no_object(const json::Value& value,
                    const std::string& path,
                    std::span<const std::string> keys,
                    Problems& problems);

/// Remembers where the keys of the source stood, so that cross checks made later can point at them.
class Origins {
 public:
  void note(std::string path, json::Place place);
  /// `value` and everything in it.
  void note_all(const std::string& path, const json::Value& value);
  /// Of the key or of its nearest enclosing object.
  [[nodiscard]] json::Place place(std::string_view path) const;
  [[nodiscard]] bool given(std::string_view path) const;  ///< the user wrote this very key

 private:
  std::vector<std::pair<std::string, json::Place>> list_;
};

/// Reads `source` (an object) into what `options.describe` names: unknown keys (with the nearest
/// name), wrong types, ranges and choices go to `problems`; keys that are absent keep their
/// defaults. null stands for "not given", a single string for a list of one.
template <class S>
void read(const json::Value& source, S& options, Problems& problems, Origins& origins);
/// The options as JSON in the order of describe(); optionals without a value are left out.
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
