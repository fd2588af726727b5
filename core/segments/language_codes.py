"""What recognisers may call a language: its code, its letters of ISO 639-3, and how MMS tells scripts apart."""

from __future__ import annotations

# ISO 639-1 and 639-3, https://iso639-3.sil.org; of a macrolanguage the one that MMS and others have recordings of.
_TABLE = """
aa aar  af afr  ak aka  am amh  ar ara  as asm  av ava  ay aym  az azj  ba bak  be bel  bg bul  bm bam  bn ben
bo bod  br bre  bs bos  ca cat  ce che  cs ces  cv chv  cy cym  da dan  de deu  dv div  dz dzo  ee ewe  el ell
en eng  eo epo  es spa  et est  eu eus  fa fas  ff ful  fi fin  fo fao  fr fra  fy fry  ga gle  gd gla  gl glg
gn grn  gu guj  ha hau  he heb  hi hin  hr hrv  ht hat  hu hun  hy hye  id ind  ig ibo  is isl  it ita  ja jpn
jv jav  ka kat  kg kon  ki kik  kk kaz  kl kal  km khm  kn kan  ko kor  ku kmr  kw cor  ky kir  lb ltz  lg lug
ln lin  lo lao  lt lit  lv lav  mg mlg  mi mri  mk mkd  ml mal  mn mon  mr mar  ms zlm  mt mlt  my mya  nb nob
nd nde  ne npi  nl nld  nn nno  no nob  nr nbl  ny nya  oc oci  om orm  or ory  os oss  pa pan  pl pol
ps pus  pt por  qu que  rm roh  rn run  ro ron  ru rus  rw kin  sa san  sc srd  sd snd  se sme  sg sag  si sin
sk slk  sl slv  sm smo  sn sna  so som  sq sqi  sr srp  ss ssw  st sot  su sun  sv swe  sw swh  ta tam  te tel
tg tgk  th tha  ti tir  tk tuk  tl tgl  tn tsn  to ton  tr tur  ts tso  tt tat  tw twi  ug uig  uk ukr  ur urd
uz uzb  ve ven  vi vie  wo wol  xh xho  yi yid  yo yor  za zha  zh cmn  zu zul
"""
_LETTERS = _TABLE.split()
_ISO3 = dict(zip(_LETTERS[::2], _LETTERS[1::2], strict=True))
_SCRIPTS = ("latin", "cyrillic", "arabic", "devanagari", "khmer", "ethiopic")


def names_of(language: str, called: str = "") -> tuple[str, ...]:
    """Names to try, the likeliest first; only `called` where a person says it."""
    if called:
        return (called,)
    short = language.split("-")[0]
    letters = _ISO3.get(short, short)
    return tuple(dict.fromkeys((letters, language, short, *(f"{letters}-script_{script}" for script in _SCRIPTS))))
