// SPDX-License-Identifier: Apache-2.0
// A streaming JSON reader that builds no tree: reading a header of 100 MB costs only what the
// caller keeps.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::checkpoint {

/// A position in a JSON text. Every method consumes one value or throws Error{Format} naming
/// `source`, the byte and what was expected. It does not recurse: depth is bounded by the nesting
/// of the caller's code. Threads: one.
class JsonCursor {
 public:
  /// `text` must outlive the cursor. Invalid UTF-8 is rejected at once.
  JsonCursor(std::string_view text, std::string source);

  /// Calls on_member(key), which must consume the value of the member. Duplicate keys are rejected.
  template <class F>
  void object(F on_member) {
    expect('{', "an object");
    if (accept('}')) return;
    std::set<std::string, std::less<>> seen;
    do {
      const auto [key, fresh] = seen.insert(string());
      if (!fresh) fail("key " + shown(*key) + " appears twice");
      expect(':', "a colon");
      on_member(*key);
    } while (accept(','));
    expect('}', "a comma or the end of the object");
  }
  /// Calls on_item(), which must consume the item.
  template <class F>
  void array(F on_item) {
    expect('[', "an array");
    if (accept(']')) return;
    do {
      on_item();
    } while (accept(','));
    expect(']', "a comma or the end of the array");
  }
  std::string string();
  /// Reads a whole number without sign, fraction or exponent that fits 63 bits.
  std::int64_t count();
  /// Returns the text of the next value of any type, at most `limit` bytes; brackets and quotes are
  /// matched, everything else is left to the parser that receives the text.
  std::string_view raw(std::size_t limit);
  /// Requires that only white space follows.
  void end();

  /// Sets the context of the values that follow, for messages: "tensor \"w\"".
  void within(std::string context) { context_ = std::move(context); }
  [[noreturn]] void fail(const std::string& what) const;
  [[nodiscard]] const std::string& source() const { return source_; }
  /// Formats a name for a message: quoted, control characters escaped, cut at 200 bytes.
  static std::string shown(std::string_view name);

 private:
  void skip_space();
  bool accept(char c);
  void expect(char c, const char* what);
  /// Reads the escape at the position.
  void escape(std::string& out);

  std::string_view text_;
  std::size_t at_ = 0;
  std::string source_, context_;
};

}  // namespace tessera::checkpoint
