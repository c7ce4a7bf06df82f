import sys, json, urllib.request, urllib.error
from tests.api import server
class T(server.ApiTestCase):
    def test(self):
        with server.served(self.application) as url:
            for line in sys.stdin.read().splitlines():
                m,p,tok,*b=line.split(" ",3)
                r=urllib.request.Request(url+p,method=m,headers={"X-Auth-Token":tok,"Content-Type":"application/json"},data=b[0].encode() if b else None)
                try: a=urllib.request.urlopen(r)
                except urllib.error.HTTPError as e: a=e
                print(m,p,a.status,a.read()[:600].decode(), dict(a.headers) if "-h" in sys.argv else "")
