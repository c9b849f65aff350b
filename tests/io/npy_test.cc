// .npy: round trips, the versions and orders that NumPy writes, and every rule of the format with a file that breaks
// it.
#include "qkv/io/npy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "io/bytes.h"
#include "qkv/io/file.h"

namespace qkv::test {
namespace {

const std::string kMagic = "\x93NUMPY";
const std::string kGood = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n";
const std::string kData = "abcdefghijkl";

std::string file_text(const std::string& header, const std::string& data, int version = 1) {
  return kMagic + static_cast<char>(version) + std::string(1, '\0') +
         little_endian_text(header.size(), version == 1 ? 2 : 4) + header + data;
}

std::string with(const std::string& from, const std::string& to) { return replaced(kGood, from, to); }

AnyTensor parse(const std::string& text) { return io::parse_npy(bytes_of(text)); }

TEST(Npy, RoundTripOfEveryDtypeKeepsBits) {
  for (const DType dtype : kAllDTypes) {
    for (const std::vector<Index>& sizes : {std::vector<Index>{2, 3}, {}, {7}, {0}, {4, 0, 2}}) {
      const AnyTensor tensor = counting_tensor(dtype, sizes);
      if (dtype == DType::kBF16) {
        EXPECT_THROW(io::write_npy(tensor), UnsupportedError);
      } else {
        const Bytes file = io::write_npy(tensor);
        EXPECT_TRUE(same(io::parse_npy(file), tensor)) << dtype_name(dtype);
        EXPECT_EQ((file.size() - tensor.bytes.size()) % 64, 0u) << dtype_name(dtype);
      }
    }
  }
}

TEST(Npy, WritesTheBytesThatNumpyWrites) {
  const Folder folder;
  io::save_npy(folder / "again.npy", io::load_npy(data_file("c_order.npy")));
  EXPECT_EQ(io::read_file(folder / "again.npy"), io::read_file(data_file("c_order.npy")));
}

TEST(Npy, ReadsWhatNumpyWroteInEveryOrderAndVersion) {
  const std::pair<const char*, DType> files[] = {{"c_order.npy", DType::kF32}, {"fortran_order.npy", DType::kF64},
      {"big_endian.npy", DType::kI16}, {"fortran_big_endian.npy", DType::kF32}, {"version_2.npy", DType::kI64},
      {"version_3.npy", DType::kU16}};
  for (const auto& [name, dtype] : files) {
    const AnyTensor tensor = io::load_npy(data_file(name));
    EXPECT_EQ(tensor.dtype, dtype) << name;
    const Tensor<double> values = to_f64(tensor);
    ASSERT_EQ(values.sizes(), (std::vector<Index>{2, 3, 4})) << name;
    for (Index i = 0; i < values.count(); ++i) EXPECT_EQ(values.data()[i], static_cast<double>(i)) << name;
  }
}

TEST(Npy, ReadsTheLiteralInEachFormThatPythonAllows) {
  const AnyTensor wanted = parse(file_text(kGood, kData));
  for (const std::string& header : {std::string("{'shape':(2,3,),'descr':\"<i2\",'fortran_order':False}\n"),
           std::string("{ 'fortran_order' : False , 'shape' : ( 2 , 3 ) , 'descr' : '<i2' , }          \n")}) {
    EXPECT_TRUE(same(parse(file_text(header, kData)), wanted)) << header;
    EXPECT_TRUE(same(parse(file_text(header, kData, 2)), wanted)) << header;
    EXPECT_TRUE(same(parse(file_text(header, kData, 3)), wanted)) << header;
  }
  EXPECT_EQ(parse(file_text(with("<i2", ">i2"), kData)).bytes, bytes_of("badcfehgjilk"));
  EXPECT_EQ(parse(file_text(with("False", "True"), kData)).bytes, bytes_of("abefijcdghkl"));
  EXPECT_EQ(parse(file_text(with("(2, 3)", "(12,)").replace(11, 3, "|u1"), kData)).dtype, DType::kU8);
}

TEST(Npy, EveryRuleOfTheHeaderIsCheckedWhereItBreaks) {
  std::string axes = "(";
  for (int i = 0; i < 64; ++i) axes += "1, ";
  const Rule rules[] = {
      {"empty header", "^", "must be a dict"},
      {"not a dict", "^[1, 2]\n", "must be a dict"},
      {"a call", "^__import__('os')\n", "must be a dict"},
      {"an expression", with("(2, 3)", "^__import__('os')"), "must be a tuple"},
      {"no end of dict", "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3) ^", "comma or }"},
      {"no comma", "{'descr': '<i2' ^'shape': (2, 3), }\n", "comma or }"},
      {"no colon", with("'descr':", "'descr'^="), "a colon"},
      {"key no string", with("'descr'", "^descr"), "must be a string"},
      {"key without end", "{^'descr: 1", "a closing quote"},
      {"unknown key", with("'descr'", "^'dtype'"), "got \"dtype\""},
      {"key twice", with("'fortran_order'", "^'descr'"), "a second descr"},
      {"key missing", with("'fortran_order': False, ", "").insert(kGood.find('}') - 24, "^"), "must have descr"},
      {"no newline", "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }^", "one newline"},
      {"text after", with("}\n", "} ^#\n"), "one newline"},
      {"two newlines", with("}\n", "}^\n\n"), "one newline"},
      {"object", with("'<i2'", "^'|O'"), "got \"|O\""},
      {"void", with("'<i2'", "^'|V2'"), "perhaps bfloat16"},
      {"complex", with("'<i2'", "^'<c8'"), "got \"<c8\""},
      {"text", with("'<i2'", "^'<U4'"), "got \"<U4\""},
      {"date", with("'<i2'", "^'<M8[ns]'"), "got \"<M8[ns]\""},
      {"long double", with("'<i2'", "^'<f16'"), "got \"<f16\""},
      {"hostile descr", with("'<i2'", "^'\x1b[2J'"), R"("\x1b[2J")"},
      {"structured", with("'<i2'", "^[('a', '<i2')]"), "structured"},
      {"no byte order", with("'<i2'", "^'|i2'"), "byte order"},
      {"native byte order", with("'<i2'", "^'=i2'"), "byte order"},
      {"descr no string", with("'<i2'", "^2"), "must be a string"},
      {"order a number", with("False", "^0"), "True or False"},
      {"order in lower case", with("False", "^false"), "True or False"},
      {"shape a list", with("(2, 3)", "^[2, 3]"), "must be a tuple"},
      {"shape a number", with("(2, 3)", "(6^)"), "ends in a comma"},
      {"two commas", with("(2, 3)", "(2,^, 3)"), "whole number"},
      {"comma alone", with("(2, 3)", "(^,)"), "whole number"},
      {"no comma between", with("(2, 3)", "(2 ^3)"), "separated by a comma"},
      {"shape without end", "{'shape': (2, ^", "whole number"},
      {"negative size", with("(2, 3)", "(^-2, 3)"), "whole number"},
      {"plus sign", with("(2, 3)", "(^+2, 3)"), "whole number"},
      {"float size", with("(2, 3)", "(2^.0, 3)"), "a comma"},
      {"long of Python 2", with("(2, 3)", "(2^L, 3)"), "a comma"},
      {"hexadecimal", with("(2, 3)", "(0^x2, 3)"), "a comma"},
      {"leading zero", with("(2, 3)", "(^02, 3)"), "whole number"},
      {"underscore", with("(2, 3)", "(1^_2, 3)"), "a comma"},
      {"size past 2^53", with("(2, 3)", "(^9007199254740993,)"), "2^53"},
      {"size past 2^64", with("(2, 3)", "(^99999999999999999999999,)"), "2^53"},
      {"65 axes", with("(2, 3)", axes + "^1)"), "64 axes"},
      {"product overflows", with("(2, 3)", "^(4294967296, 4294967296)"), "63 bits"},
      {"axes of nothing", with("(2, 3)", "^(4503599627370496, 0)"), "beside an axis of 0 in 32"},
      {"product overflows beside 0", with("(2, 3)", "^(0, 4294967296, 4294967296)"), "63 bits"},
  };
  ASSERT_NO_THROW(parse(file_text(kGood, kData)));
  expect_rules(rules, 10, [](const std::string& header) { parse(file_text(header, kData)); });
  expect_rules(rules, 12, [](const std::string& header) { parse(file_text(header, kData, 2)); });
}

TEST(Npy, PrefixAndLengthsAreCheckedBeforeTheyAreUsed) {
  expect_format_error([] { parse(""); }, 0, "begins with");
  expect_format_error([] { parse("\x93NUMPX\x01"); }, 5, "begins with");
  expect_format_error([] { parse(kMagic + "\x01"); }, 7, "a version");
  expect_format_error([] { parse(kMagic + std::string("\x04\x00..", 4)); }, 6, "got 4.0");
  expect_format_error([] { parse(kMagic + std::string("\x00\x00..", 4)); }, 6, "got 0.0");
  expect_format_error([] { parse(kMagic + "\x01\x01.."); }, 6, "got 1.1");
  expect_format_error([] { parse(kMagic + std::string("\x01\x00.", 3)); }, 9, "length of its header");
  expect_format_error([] { parse(kMagic + std::string("\x02\x00...", 5)); }, 11, "length of its header");
  expect_format_error([] { parse(kMagic + std::string("\x01\x00\xff\xff{}", 6)); }, 8, "must end within the file");
  expect_format_error([] { parse(kMagic + std::string("\x02\x00\xff\xff\xff\xff{}", 8)); }, 8, "at most 65535");
  const std::size_t data_at = 10 + kGood.size();
  expect_format_error([] { parse(file_text(kGood, kData + "m")); }, data_at + 12, "12 bytes: got 13");
  expect_format_error([] { parse(file_text(kGood, "abc")); }, data_at + 3, "12 bytes: got 3");
  expect_format_error(
      [] { parse(file_text(with("(2, 3)", "(4503599627370496,)"), kData)); }, data_at + 13 + 12, "got 12");
}

TEST(Npy, PartsAndFlippedBitsAreReadOrRefused) {
  const Bytes file = io::write_npy(counting_tensor(DType::kF32, {2, 3}));
  expect_whole_files_only(
      file, [](std::span<const std::byte> part) { io::parse_npy(part); }, 8 * 6);
}

TEST(Npy, WriterRefusesBytesThatAreNotTheShapes) {
  AnyTensor tensor = counting_tensor(DType::kF32, {3});
  tensor.bytes.pop_back();
  EXPECT_THROW(io::write_npy(tensor), ShapeError);
}

RC_GTEST_PROP(NpyProperty, AnyArrayComesBackFromBothOrders, ()) {
  const auto sizes = *rc::gen::resize(5, rc::gen::container<std::vector<Index>>(rc::gen::inRange<Index>(0, 4)));
  const DType dtype = *rc::gen::suchThat(rc::gen::elementOf(kAllDTypes), [](DType d) { return d != DType::kBF16; });
  const AnyTensor tensor = counting_tensor(dtype, sizes);
  Bytes file = io::write_npy(tensor);
  RC_ASSERT(same(io::parse_npy(file), tensor));

  // The same bytes read first axis fastest: element (i, j, ...) of the result is element i + j * size(0) + ... of the
  // file.
  std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  text.replace(text.find("False,"), 6, "True ,");
  const AnyTensor turned = parse(text);
  const std::size_t element = dtype_bytes(dtype);
  for (std::size_t to = 0; to * element < tensor.bytes.size(); ++to) {
    std::size_t rest = to, from = 0, stride = tensor.bytes.size() / element;
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      const auto size = static_cast<std::size_t>(sizes[axis]);
      stride /= size;
      from += rest % size * stride;
      rest /= size;
    }
    RC_ASSERT(
        std::equal(&turned.bytes[to * element], &turned.bytes[to * element] + element, &tensor.bytes[from * element]));
  }
}

}  // namespace
}  // namespace qkv::test
