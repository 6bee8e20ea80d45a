// SPDX-License-Identifier: Apache-2.0
// Reads JSON front to back without building a tree: a header of 100 MB costs what its caller keeps.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::checkpoint {

/// A position in a JSON text. Every method consumes one value or throws Error{Format} naming
/// `source`, the byte and what was expected. It never recurses by itself: depth is what the
/// caller's code nests. Threads: one.
class JsonCursor {
 public:
  /// `text` must outlive the cursor. Invalid UTF-8 is refused at once.
  JsonCursor(std::string_view text, std::string source);

  /// Calls on_member(key), which must consume the member's value. Duplicate keys are refused.
  template <class F>
  void object(F on_member) {
    expect('{', "an object");
    if (accept('}')) return;
    std::set<std::string, std::less<>> seen;
    do {
      const auto [key, fresh] = seen.insert(string());
      if (!fresh) fail("key " + shown(*key) + " stands here a second time");
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
  /// A whole number without sign, fraction or exponent that fits 63 bits.
  std::int64_t count();
  /// The text of the next value, whatever it is, at most `limit` bytes; brackets and quotes are
  /// matched, the rest is for the parser that the caller hands it to.
  std::string_view raw(std::size_t limit);
  /// Nothing but white space may follow.
  void end();

  /// What the values that follow belong to, for messages: "tensor \"w\"".
  void within(std::string context) { context_ = std::move(context); }
  [[noreturn]] void fail(const std::string& what) const;
  [[nodiscard]] const std::string& source() const { return source_; }
  /// A name as a message shows it: quoted, control characters escaped, cut at 200 bytes.
  static std::string shown(std::string_view name);

 private:
  void skip_space();
  bool accept(char c);
  void expect(char c, const char* what);
  void escape(std::string& out);
  std::uint32_t hex4();

  std::string_view text_;
  std::size_t at_ = 0;
  std::string source_, context_;
};

}  // namespace tessera::checkpoint
