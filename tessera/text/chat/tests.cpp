// SPDX-License-Identifier: Apache-2.0
// Tests ("is defined") and the look-up of filters.
#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {
namespace {

using TestBody = bool (*)(Interpreter&, const Value&, const Value&);
struct Test {
  std::string_view name;
  int arguments;
  TestBody body;
};

bool is_name_of(const FilterTable& table, const Value& value) {
  return value.is_text() && std::any_of(table.begin(), table.end(), [&](const auto& entry) {
           return entry.first == value.as_text();
         });
}

bool cased(Interpreter& in, const Value& value, const char* method) {
  return in.call(in.attribute(in.text(to_text(value, in.budget())), method), {}).truth();
}

bool divisible(Interpreter& in, const Value& value, std::int64_t by) {
  return !arithmetic("%", value, Value::integer(by), in.budget()).truth();
}

/// `is`: the same object. Values without identity are the same if they are equal.
bool same(Interpreter& in, const Value& left, const Value& right) {
  return left.type_name() == right.type_name() && equal(left, right, in.budget());
}

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): each row is one test with the same parameters
#define TESSERA_TEST(name, count, condition)                                   \
  Test {                                                                       \
    name, count, [](Interpreter& in, const Value& v, const Value& a) -> bool { \
      (void)in, (void)v, (void)a;                                              \
      return condition;                                                        \
    }                                                                          \
  }

const std::vector<Test>& tests() {
  static const std::vector<Test> kTable = {
      TESSERA_TEST("defined", 0, !v.is_undefined()),
      TESSERA_TEST("undefined", 0, v.is_undefined()),
      TESSERA_TEST("none", 0, v.is_none()),
      TESSERA_TEST("true", 0, v.is_bool() && v.as_bool()),
      TESSERA_TEST("false", 0, v.is_bool() && !v.as_bool()),
      TESSERA_TEST("boolean", 0, v.is_bool()),
      TESSERA_TEST("string", 0, v.is_text()),
      TESSERA_TEST("number", 0, v.is_number()),
      TESSERA_TEST("integer", 0, v.is_int()),
      TESSERA_TEST("float", 0, v.is_real()),
      TESSERA_TEST("mapping", 0, v.is_dict()),
      TESSERA_TEST("iterable",
                   0,
                   v.is_text() || v.is_sequence() || v.is_dict() || v.is_undefined() ||
                       v.object_as<Loop>() != nullptr),
      TESSERA_TEST(
          "sequence", 0, v.is_text() || v.is_sequence() || v.is_dict() || v.is_undefined()),
      TESSERA_TEST("callable", 0, v.is_object() && v.object_as<Namespace>() == nullptr),
      TESSERA_TEST("odd", 0, !divisible(in, v, 2)),
      TESSERA_TEST("even", 0, divisible(in, v, 2)),
      TESSERA_TEST("divisibleby", 1, divisible(in, v, need_int(a, "a divisor"))),
      TESSERA_TEST("lower", 0, cased(in, v, "islower")),
      TESSERA_TEST("upper", 0, cased(in, v, "isupper")),
      TESSERA_TEST("escaped", 0, false),
      TESSERA_TEST("filter", 0, is_name_of(text_filters(), v) || is_name_of(list_filters(), v)),
      TESSERA_TEST("in", 1, contains(a, v, in.budget())),
      TESSERA_TEST("sameas", 1, same(in, v, a)),
      TESSERA_TEST("eq", 1, equal(v, a, in.budget())),
      TESSERA_TEST("equalto", 1, equal(v, a, in.budget())),
      TESSERA_TEST("==", 1, equal(v, a, in.budget())),
      TESSERA_TEST("ne", 1, !equal(v, a, in.budget())),
      TESSERA_TEST("!=", 1, !equal(v, a, in.budget())),
      TESSERA_TEST("lt", 1, less(v, a, in.budget())),
      TESSERA_TEST("lessthan", 1, less(v, a, in.budget())),
      TESSERA_TEST("<", 1, less(v, a, in.budget())),
      TESSERA_TEST("le", 1, less(v, a, in.budget()) || equal(v, a, in.budget())),
      TESSERA_TEST("<=", 1, less(v, a, in.budget()) || equal(v, a, in.budget())),
      TESSERA_TEST("gt", 1, less(a, v, in.budget())),
      TESSERA_TEST("greaterthan", 1, less(a, v, in.budget())),
      TESSERA_TEST(">", 1, less(a, v, in.budget())),
      TESSERA_TEST("ge", 1, less(a, v, in.budget()) || equal(v, a, in.budget())),
      TESSERA_TEST(">=", 1, less(a, v, in.budget()) || equal(v, a, in.budget())),
  };
  return kTable;
}
#undef TESSERA_TEST

}  // namespace

bool Interpreter::test(const std::string& name, const Value& value, const Arguments& arguments) {
  budget_.step();
  for (const Test& test : tests()) {
    if (test.name != name) continue;
    if (!arguments.named.empty() ||
        arguments.positional.size() != static_cast<std::size_t>(test.arguments))
      fail("the test '" + name + "' takes " + std::to_string(test.arguments) + " arguments");
    return test.body(*this, value, test.arguments > 0 ? arguments.positional[0] : Value());
  }
  fail("there is no test named '" + name + "'");
}

Value Interpreter::filter(const std::string& name, const Value& value, const Arguments& arguments) {
  budget_.step();
  for (const FilterTable* table : {&text_filters(), &list_filters()}) {
    for (const auto& [known, body] : *table) {
      if (known == name) return body(*this, value, arguments);
    }
  }
  fail("there is no filter named '" + name + "'");
}

}  // namespace tessera::text::chat
