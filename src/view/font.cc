// The dots of the font. Each glyph is 8 digits in base 32 (0-9, A-V), one per row from the top; the bits of a digit are the
// five dots from left to right. 'A' = E H H V H H H 0:
//     E .###.   H #...#   H #...#   V #####   H #...#   H #...#   H #...#   0 .....
#include "view/font.h"

#include <array>
#include <string_view>

namespace qkv::inline v0::view {
namespace {

constexpr char kFirst = ' ';
constexpr std::array<std::string_view, 95> kGlyphs{
    "00000000", "44444040", "AAA00000", "AAVAVAA0", "4FKE5U40", "OP248J30", "CIK8LID0", "44800000",  //   ! " # $ % & '
    "24888420", "84222480", "04LEL400", "044V4400", "00000448", "000V0000", "00000CC0", "122488G0",  // ( ) * + , - . /
    "EHJLPHE0", "4C4444E0", "EH1248V0", "V2421HE0", "26AIV220", "VGU11HE0", "68GUHHE0", "V1248880",  // 0 1 2 3 4 5 6 7
    "EHHEHHE0", "EHHF12C0", "0CC0CC00", "0CC0C480", "248G8420", "00V0V000", "84212480", "EH124040",  // 8 9 : ; < = > ?
    "EHNLNGE0", "EHHVHHH0", "UHHUHHU0", "EHGGGHE0", "SIHHHIS0", "VGGUGGV0", "VGGUGGG0", "EHGNHHF0",  // @ A B C D E F G
    "HHHVHHH0", "E44444E0", "72222IC0", "HIKOKIH0", "GGGGGGV0", "HRLLHHH0", "HHPLJHH0", "EHHHHHE0",  // H I J K L M N O
    "UHHUGGG0", "EHHHLID0", "UHHUKIH0", "FGGE11U0", "V4444440", "HHHHHHE0", "HHHHHA40", "HHHLLLA0",  // P Q R S T U V W
    "HHA4AHH0", "HHHA4440", "V1248GV0", "E88888E0", "G8842210", "E22222E0", "4AH00000", "000000V0",  // X Y Z [ \ ] ^ _
    "84200000", "00E1FHF0", "GGMPHHU0", "00EGGHE0", "11DJHHF0", "00EHVGE0", "698S8880", "00FHHF1E",  // ` a b c d e f g
    "GGMPHHH0", "40C444E0", "206222IC", "GGIKOKI0", "C44444E0", "00QLLLL0", "00MPHHH0", "00EHHHE0",  // h i j k l m n o
    "00UHHUGG", "00FHHF11", "00MPGGG0", "00FGE1U0", "88S88960", "00HHHJD0", "00HHHA40", "00HHLLA0",  // p q r s t u v w
    "00HA4AH0", "00HHHF1E", "00V248V0", "24484420", "44444440", "84424480", "008L2000"};             // x y z { | } ~
constexpr std::string_view kBox = "VHHHHHV0";

int row_bits(char digit) { return digit <= '9' ? digit - '0' : digit - 'A' + 10; }

}  // namespace

bool glyph_dot(char character, int column, int row) {
  const bool known = character >= kFirst && character <= '~';
  const std::string_view glyph = known ? kGlyphs[static_cast<std::size_t>(character - kFirst)] : kBox;
  return (row_bits(glyph[static_cast<std::size_t>(row)]) >> (kGlyphWidth - 1 - column) & 1) != 0;
}

}  // namespace qkv::inline v0::view
